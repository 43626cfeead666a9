from __future__ import annotations

from app.messages import RESET, SettingsChanged
from app.session_settings import SessionSettings, changed_listener
from asr.settings import ListenerSettings


def test_only_what_a_change_names_is_changed() -> None:
    before = SessionSettings()
    after = before.changed(SettingsChanged(temperature=0.5, output_audio=False))
    assert after.engine.sampling.temperature == 0.5 and after.output_audio is False
    assert after.engine.sampling.max_tokens == before.engine.sampling.max_tokens
    assert after.interrupt_response is before.interrupt_response
    assert before.changed(SettingsChanged()) == before


def test_the_listeners_share_of_a_change_leaves_the_rest_alone() -> None:
    before = ListenerSettings(silence_ms=400)
    after = changed_listener(before, SettingsChanged(turn_detection="server_vad", language="de"))
    assert (after.turn_detection, after.language, after.silence_ms) == ("server_vad", "de", 400)
    assert changed_listener(before, SettingsChanged(instructions="be brief")) == before


def test_what_is_reset_is_as_if_nobody_had_set_it() -> None:
    before = ListenerSettings(vad_threshold=0.9, language="de", hot_words="Hibari", silence_ms=400)
    change = SettingsChanged(vad_threshold=RESET, language=RESET, hot_words=RESET)
    assert changed_listener(before, change) == ListenerSettings(silence_ms=400)


def test_the_telephones_thresholds_hold_until_the_audio_is_wide_again() -> None:
    before = ListenerSettings()
    narrow = changed_listener(before, SettingsChanged(is_telephone=True))
    assert narrow.thresholds.off < before.thresholds.off
    assert changed_listener(narrow, SettingsChanged(language="de")).is_telephone
    assert changed_listener(narrow, SettingsChanged(is_telephone=False)) == before
