"""session.update, in every shape."""

from __future__ import annotations

import pytest

from app import messages as m
from app.protocols.realtime_settings import LOGPROBS


def test_an_update_changes_the_session_and_is_confirmed(client):
    change, event = client.updates(instructions="Rhyme.", output_modalities=["text"])
    assert change == m.SettingsChanged(instructions="Rhyme.", output_audio=False)
    assert event["type"] == "session.updated"
    assert event["session"]["instructions"] == "Rhyme."
    assert event["session"]["output_modalities"] == ["text"]


def test_a_wrong_update_changes_nothing(client):
    error = client.error(
        "session.update", session={"type": "realtime", "instructions": "x", "max_output_tokens": -1}
    )
    assert error["param"] == "session.max_output_tokens" and "-1" in error["message"]
    (event,) = client.updates()
    assert event["session"]["instructions"] == "Be brief."


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_audio_in_the_telephones_band_is_heard_as_such_until_it_changes_back(client, kind) -> None:
    narrow, _ = client.updates(audio={"input": {"format": {"type": kind}}})
    assert narrow == m.SettingsChanged(is_telephone=True)
    (_,) = client.updates(audio={"input": {"format": {"type": kind}}})  # nothing has changed
    wide, _ = client.updates(audio={"input": {"format": {"type": "audio/pcm"}}})
    assert wide == m.SettingsChanged(is_telephone=False)


def test_log_probabilities_are_asked_for_until_they_are_no_longer_included(client) -> None:
    change, event = client.updates(include=[LOGPROBS])
    assert change == m.SettingsChanged(word_times=True)
    assert event["session"]["include"] == [LOGPROBS]
    (event,) = client.updates(instructions=None)
    assert event["session"]["include"] == [LOGPROBS]
    change, event = client.updates(include=[])
    assert change == m.SettingsChanged(word_times=False)
    assert event["session"]["include"] is None


def test_what_the_client_hears_is_not_what_it_sends(client) -> None:
    (_,) = client.updates(audio={"output": {"format": {"type": "audio/pcmu"}}})


def test_an_unknown_extension_is_refused(client):
    session = {"type": "realtime", "forespeak": {"telepathy": True}}
    error = client.error("session.update", session=session)
    assert error["param"] == "session.forespeak.telepathy"


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"type": "poem"}, "session.type"),
        ({"instructions": 3}, "session.instructions"),
        ({"output_modalities": ["video"]}, "session.output_modalities"),
        ({"output_modalities": []}, "session.output_modalities"),
        ({"output_modalities": "audio"}, "session.output_modalities"),
        ({"include": "logprobs"}, "session.include"),
        ({"include": ["item.input_audio_transcription.poems"]}, "session.include[0]"),
        ({"tools": [{"type": "function", "name": "f"}]}, "session.tools"),
        ({"temperature": 3}, "session.temperature"),
        ({"audio": 3}, "session.audio"),
        ({"audio": {"input": 3}}, "session.audio.input"),
        ({"audio": {"input": {"format": {"type": "mp3"}}}}, "session.audio.input.format.type"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 44_100}}}},
            "session.audio.input.format.rate",
        ),
        ({"audio": {"output": {"format": "pcm"}}}, "session.audio.output.format"),
        (
            {"audio": {"input": {"turn_detection": {"type": "guess"}}}},
            "session.audio.input.turn_detection.type",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "x"}}}},
            "session.audio.input.turn_detection.eagerness",
        ),
        ({"audio": {"input": {"transcription": {"language": 1}}}}, None),
        ({"forespeak": True}, "session.forespeak"),
        ({"forespeak": {"draft": "yes"}}, "session.forespeak.draft"),
    ],
)
def test_a_bad_field_is_named(client, session, param):
    error = client.error("session.update", session={"type": "realtime"} | session)
    assert error["param"] == (param or "session.audio.input.transcription.language")


def test_server_vad_and_transcription_settings_reach_the_session(client):
    change, event = client.updates(
        audio={
            "input": {
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.6,
                    "silence_duration_ms": 350,
                    "interrupt_response": False,
                },
                "transcription": {"model": "x", "language": "de", "prompt": "Forespeak"},
            }
        },
        max_output_tokens="inf",
    )
    assert change == m.SettingsChanged(
        max_reply_tokens=4096,
        language="de",
        hot_words="Forespeak",
        turn_detection="server_vad",
        silence_ms=350,
        vad_threshold=0.6,
        create_response=True,
        interrupt_response=False,
    )
    shown = event["session"]["audio"]["input"]
    assert shown["turn_detection"]["silence_duration_ms"] == 350
    assert shown["transcription"]["language"] == "de"


@pytest.mark.parametrize("turn_detection", [{"type": "semantic_vad"}, None])
def test_the_threshold_of_server_vad_ends_with_it(client, turn_detection):
    server_vad = {"type": "server_vad", "threshold": 0.9}
    change, _ = client.updates(audio={"input": {"turn_detection": server_vad}})
    assert change.vad_threshold == 0.9
    change, event = client.updates(audio={"input": {"turn_detection": turn_detection}})
    assert change.vad_threshold is m.RESET
    assert "threshold" not in str(event["session"]["audio"]["input"]["turn_detection"])


def test_a_language_and_a_prompt_can_be_taken_back(client):
    client.updates(audio={"input": {"transcription": {"language": "de", "prompt": "Hibari"}}})
    transcription = {"language": None, "prompt": None}
    change, event = client.updates(audio={"input": {"transcription": transcription}})
    assert (change.language, change.hot_words) == (m.RESET, m.RESET)
    assert event["session"]["audio"]["input"]["transcription"] == {"model": "whisper"}


def test_semantic_vad_is_as_eager_as_asked(client):
    change, _ = client.updates(
        audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}
    )
    assert (change.turn_detection, change.eagerness) == ("semantic_vad", "high")


def test_a_transcription_session_never_replies_until_it_becomes_a_realtime_one(client):
    change, event = client.sends("session.update", session={"type": "transcription"})
    assert change.create_response is False
    assert event["session"]["type"] == "transcription" and "voice" not in str(event)
    change, _ = client.updates()
    assert change.create_response is True


def test_what_is_harmless_is_ignored_and_the_values_in_effect_are_shown(client):
    (event,) = client.updates(
        audio={"output": {"voice": "marin", "speed": 1.2}, "input": {"noise_reduction": None}},
        tracing="auto",
        tools=[],
    )
    assert event["session"]["audio"]["output"]["speed"] == 1.0
    assert event["session"]["tools"] == []
