from __future__ import annotations

import numpy as np
import pytest

from app import messages as m
from app.errors import ItemNotFound
from llm_engine import events as thought
from tests.app.fakes import Stage

STORY = "Once there was a king. He had a horse. It could fly."


def playing(heard_s: float) -> Stage:
    """A reply of three pieces of 1 s, sent whole, of which `heard_s` have been played."""
    stage = Stage()
    stage.asks("tell me a story")
    stage.generates(STORY)
    stage.speaks_all(seconds=1.0)
    stage.waits(heard_s)
    return stage


def reply_of(stage: Stage) -> m.ReplyStarted:
    started: m.ReplyStarted = stage.of_type(m.ReplyStarted)[-1]
    return started


def test_a_client_that_played_less_than_the_clock_says_is_believed() -> None:
    stage = playing(2.5)
    item_id = reply_of(stage).item_id
    stage.session.on_command(m.ReplyTruncated(item_id, 1000), stage.now_s)
    assert stage.conversation.text_of(item_id) == "Once there was a king."
    assert stage.of_type(m.ReplyCut) == [m.ReplyCut(item_id, 1000, "Once there was a king.")]


def test_what_was_played_before_the_microphone_opened_stays_heard() -> None:
    stage = playing(2.5)
    item_id = reply_of(stage).item_id
    stage.session.move_clock(-stage.now_s)  # audio time begins at 0
    stage.now_s = 0.0
    stage.session.on_command(m.ReplyCancelled(), stage.now_s)
    (cut,) = stage.of_type(m.ReplyCut)
    assert cut.heard_ms == 2500
    assert stage.conversation.text_of(item_id).startswith("Once there was a king.")


def test_a_cut_may_be_corrected_by_the_client_afterwards() -> None:
    stage = playing(1.2)
    item_id = reply_of(stage).item_id
    stage.starts_speaking()
    stage.waits(0.3)
    assert stage.conversation.text_of(item_id).startswith("Once there was a king.")
    stage.session.on_command(m.ReplyTruncated(item_id, 100), stage.now_s)
    assert not stage.conversation.has(item_id)  # of its first word only a part was heard


def test_a_playback_mark_moves_the_playing_clock() -> None:
    stage = playing(0.5)
    stage.session.on_command(m.PlaybackReported(reply_of(stage).reply_id, 0), stage.now_s)
    stage.waits(2.9)
    assert stage.engine.warmed[-1].num_tokens == stage.engine.warmed[0].num_tokens  # still playing
    stage.waits(0.3)
    assert stage.engine.warmed[-1].num_tokens > stage.engine.warmed[0].num_tokens


def test_truncating_an_unknown_item_is_refused() -> None:
    stage = playing(0.5)
    with pytest.raises(ItemNotFound, match="nope"):
        stage.session._delivery.truncate("nope", 100, stage.now_s)


def test_a_reply_of_an_older_engine_session_is_not_taken_for_the_running_one() -> None:
    stage = Stage()
    stage.asks("one")
    stage.session.on_command(
        m.SettingsChanged(temperature=0.5), stage.now_s
    )  # a new engine session
    stage.asks("two")
    stage.session.on_engine_event(
        thought.ReplyDelta("engine-1", 0, 0, (1,), "old words", (0.0,)), stage.now_s
    )
    assert not stage.of_type(m.ReplyText)


def test_speech_that_fails_lets_the_text_reach_its_end() -> None:
    stage = Stage()
    stage.asks("hello")
    stage.generates("Hi there.")
    (key,) = stage.voice.spoken
    stage.session.on_spoken(key, None, True, stage.now_s)
    assert stage.of_type(m.ReplyFinished)[0].reason == "completed"
    assert not stage.of_type(m.ReplyAudio)


def test_a_reply_waits_for_the_voice_once_its_first_words_are_there() -> None:
    stage = Stage()
    stage.asks("tell me a story")
    stage.replies("Once there ")
    assert not stage.engine.held_replies  # too little to speak
    stage.replies("was a king. He ")
    assert stage.engine.held_replies == {stage.engine_id}
    (key,) = stage.voice.spoken
    stage.session.on_spoken(key, np.ones(480, np.float32), False, stage.now_s)
    assert not stage.engine.held_replies
    stage.replies("had a horse. It ")
    assert not stage.engine.held_replies  # the first piece plays: nobody waits


def test_a_reply_goes_on_when_its_first_words_cannot_be_spoken() -> None:
    stage = Stage()
    stage.asks("tell me a story")
    stage.replies("Once there was a king. He ")
    (key,) = stage.voice.spoken
    stage.session.on_spoken(key, None, True, stage.now_s)
    assert not stage.engine.held_replies


def test_a_reply_whose_first_words_were_spoken_ahead_does_not_wait() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("tell me a story")
    stage.drafts("Once there was a king. He ")
    stage.speaks_all()
    stage.ends("tell me a story")
    stage.replies("Once there was a king. He ")
    assert not stage.engine.held_replies


def test_a_client_may_say_what_it_played_of_a_reply_that_new_settings_stopped() -> None:
    stage = playing(2.5)
    item_id = reply_of(stage).item_id
    stage.session.on_command(m.SettingsChanged(temperature=0.5), stage.now_s)
    stage.session.on_command(m.ReplyTruncated(item_id, 1000), stage.now_s)
    assert stage.conversation.text_of(item_id) == "Once there was a king."
    assert stage.of_type(m.ReplyCut)[-1] == m.ReplyCut(item_id, 1000, "Once there was a king.")


def test_a_reply_waits_for_a_held_piece_of_which_nothing_has_come_yet() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("tell me a story")
    stage.drafts("Once there was a king. He ")
    stage.ends("tell me a story")
    stage.replies("Once there was a king. He ")
    assert stage.engine.held_replies == {stage.engine_id}
    (key,) = stage.voice.spoken
    assert key not in stage.voice.held  # it waits behind nothing speculative any more
    stage.session.on_spoken(key, np.ones(480, np.float32), False, stage.now_s)
    assert not stage.engine.held_replies
    assert stage.of_type(m.ReplyAudio)[0].text == "Once there was a king."


def test_an_interruption_ends_the_wait_for_the_voice() -> None:
    stage = Stage()
    stage.asks("tell me a story")
    stage.replies("Once there was a king. He ")
    assert stage.engine.held_replies
    stage.starts_speaking()
    stage.waits(0.3)
    assert not stage.engine.held_replies and stage.engine.num_cancelled == 1
    (key,) = stage.voice.spoken
    stage.session.on_spoken(key, np.ones(480, np.float32), False, stage.now_s)  # on its way
    assert not stage.of_type(m.ReplyAudio)
    stage.ends("never mind")
    stage.generates("All right.")
    stage.speaks_all()
    assert stage.of_type(m.ReplyFinished)[-1].reason == "completed"


def test_pieces_that_a_full_voice_refuses_are_reported_once_and_hold_nothing_up() -> None:
    stage = Stage()
    stage.asks("tell me a story")
    stage.replies("Once there was a king. He ")
    (first,) = stage.voice.spoken
    stage.session.on_unspoken(first, "64 pieces already wait to be spoken", stage.now_s)
    assert not stage.engine.held_replies
    stage.generates("had a horse. It could fly.")
    for key in list(stage.voice.spoken)[1:]:
        stage.session.on_unspoken(key, "64 pieces already wait to be spoken", stage.now_s)
    (error,) = stage.of_type(m.ErrorReported)
    assert error.code == "speech_failed" and "64 pieces" in error.message
    assert stage.of_type(m.ReplyFinished)[0].reason == "completed"


def test_a_held_piece_that_the_voice_refuses_is_not_reported() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("tell me a story")
    stage.drafts("Once there was a king. He ")
    (key,) = stage.voice.spoken
    stage.session.on_unspoken(key, "64 pieces already wait to be spoken", stage.now_s)
    stage.ends("tell me a story")
    stage.generates("Once there was a king.")
    stage.speaks_all()
    assert not stage.of_type(m.ErrorReported)
    assert stage.of_type(m.ReplyAudio)[0].text == "Once there was a king."
