from __future__ import annotations

from dataclasses import replace

import pytest

from app import messages as m
from app.session import MAX_QUEUED_TURNS
from app.session_settings import SessionSettings
from asr import events as heard
from llm_engine import events as thought
from llm_engine.errors import PromptTooLong
from llm_engine.prompt import Snapshot
from tests.app.fakes import Stage

ANSWER = "It is three o'clock. Anything else?"
NO_INTERRUPTION = SessionSettings(interrupt_response=False)


def test_partials_become_snapshots_and_the_end_commits_the_same_prompt() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what")
    stage.says("what time is it", at_pause=True)
    stage.ends("what time is it")
    assert [len(stage.engine.updates), len(stage.engine.commits)] == [2, 1]
    assert stage.engine.commits[0].token_ids == stage.engine.updates[-1].token_ids
    assert stage.engine.commits[0].revision > stage.engine.updates[-1].revision


def test_the_prompts_beginning_is_computed_before_anything_is_said_and_between_turns() -> None:
    stage = Stage()
    assert [bytes(s.token_ids).decode() for s in stage.engine.warmed] == ["be brief|assistant:"]
    stage.asks("hello")
    stage.generates("Hi.")
    stage.speaks_all()
    stage.waits(1.5)
    assert bytes(stage.engine.warmed[-1].token_ids).decode() == (
        "be briefuser:hello|assistant:Hi.||assistant:"
    )


def test_a_baseline_session_computes_nothing_ahead() -> None:
    assert not Stage(SessionSettings(compute_ahead=False)).engine.warmed


def test_an_equal_hypothesis_is_not_sent_to_the_engine_again() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time")
    stage.says("what time")
    assert len(stage.engine.updates) == 1
    stage.says("what time", at_pause=True)
    assert len(stage.engine.updates) == 2  # now it is the likely final


@pytest.mark.parametrize(
    ("trigger", "num_changes"),
    [
        (thought.SpeculationTrigger.PARTIAL, [0, 1, 1]),
        # the words are the same, but they are stable now
        (thought.SpeculationTrigger.STABLE, [0, 1, 2, 2]),
    ],
)
def test_the_engine_is_told_when_the_stable_words_changed(
    trigger: thought.SpeculationTrigger, num_changes: list[int]
) -> None:
    stage = Stage(SessionSettings(engine=thought.SessionConfig(trigger=trigger)))
    stage.starts_speaking()
    for stable, text in (("", "what"), ("what", "what time"), ("what time", "what time")):
        stage.hears(replace(stage.transcript(text), stable=stable))
    stage.says("what time is", at_pause=True)
    assert [s.num_stable_changes for s in stage.engine.updates] == num_changes


def test_nothing_of_a_draft_leaves_before_the_end_of_the_utterance() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time is it", at_pause=True)
    stage.drafts(ANSWER)
    stage.speaks_all()
    assert not stage.of_type(m.ReplyAudio) and not stage.of_type(m.ReplyText)
    assert stage.of_type(m.DraftShown)[-1].text == ANSWER


def test_the_held_piece_leaves_the_moment_the_draft_is_confirmed() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time is it", at_pause=True)
    stage.drafts(ANSWER)
    stage.speaks_all()
    stage.now_s = 2.0
    stage.ends("what time is it")
    stage.generates(ANSWER)
    audio = stage.of_type(m.ReplyAudio)
    assert [event.text for event in audio] == ["It is three o'clock."]
    stage.speaks_all()
    (metrics,) = [event.metrics for event in stage.of_type(m.TurnMeasured)]
    assert metrics["ready_lag_ms"] == 0 and metrics["ready_at_eou"] is True
    assert metrics["transcript"] == "what time is it" and metrics["reply"] == ANSWER


def test_a_turn_reports_every_step_to_the_client_in_order() -> None:
    stage = Stage()
    stage.asks("what time is it")
    stage.generates(ANSWER)
    stage.speaks_all()
    kinds = [type(event) for event in stage.events if not isinstance(event, m.ReplyAudio)]
    assert kinds == [
        m.UserSpeechStarted,
        m.TranscriptChanged,
        m.UserSpeechStopped,
        m.TranscriptFinal,
        m.ReplyStarted,
        m.ReplyText,
        m.ReplyFinished,
        m.TurnMeasured,
    ]


def test_words_that_were_asked_for_and_the_language_are_told_with_the_final_transcript() -> None:
    stage = Stage()
    stage.session.on_command(m.SettingsChanged(word_times=True), 0.0)
    assert stage.listener.settings.word_times
    stage.starts_speaking()
    words = (heard.Word("hello", 0.1, 0.4, 0.9),)
    transcript = replace(stage.transcript("hello", at_pause=True), words=words, language="en")
    stage.hears(heard.UtteranceEnded(1, 1.0, 0.7, transcript, "likely"))
    (final,) = stage.of_type(m.TranscriptFinal)
    assert (final.text, final.words, final.language) == ("hello", words, "en")


def test_the_next_turns_prompt_holds_the_last_turn() -> None:
    stage = Stage()
    stage.asks("hello")
    stage.generates("Hi there.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("bye")
    prompt = bytes(stage.engine.commits[-1].token_ids).decode()
    assert "user:hello|assistant:Hi there.|bye" in prompt


def test_an_utterance_without_words_gets_no_reply() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.ends(None)
    assert not stage.engine.commits and not stage.of_type(m.ReplyStarted)
    assert stage.of_type(m.TranscriptFinal)[0].text == ""
    stage.asks("hello")
    assert len(stage.engine.commits) == 1


def test_the_engines_end_probability_reaches_the_listener_as_evidence_for_its_transcript() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time is it")
    revision = stage.engine.updates[-1].revision
    stage.session.on_engine_event(thought.SnapshotScored(stage.engine_id, revision, 0.75), 0.0)
    stage.session.on_engine_event(thought.SnapshotScored(stage.engine_id, 999, 0.5), 0.0)
    assert stage.listener.scores == [(1, 1, 0.75)]


def test_speech_during_the_reply_stops_it_and_keeps_what_was_heard() -> None:
    stage = Stage()
    stage.asks("what time is it")
    stage.generates(ANSWER)
    stage.speaks_all(seconds=1.0)
    stage.waits(1.2)  # 1.2 s of 2 s are heard
    stage.starts_speaking()
    stage.waits(0.1)
    assert not stage.of_type(m.AudioFlushed)  # a blip so far
    stage.waits(0.1)
    assert len(stage.of_type(m.AudioFlushed)) == 1
    assert stage.conversation.text_of(stage.of_type(m.ReplyStarted)[0].item_id) == (
        "It is three o'clock."
    )
    turn, num_tokens = stage.engine.truncated[0]
    assert turn == 0 and 0 < num_tokens < len(ANSWER)
    stage.ends("never mind")
    assert len(stage.engine.commits) == 2


def test_interrupting_a_reply_that_is_still_made_cancels_it_in_the_engine() -> None:
    stage = Stage()
    stage.asks("tell me a story")
    stage.starts_speaking()
    stage.waits(0.3)
    assert stage.engine.num_cancelled == 1
    assert stage.of_type(m.ReplyFinished)[0].reason == "interrupted"
    assert not stage.of_type(m.TurnMeasured)  # the account is to come
    stage.session.on_engine_event(
        thought.ReplyDone(stage.engine_id, 0, "cancelled", thought.TurnStats(drafted_tokens=7)), 1.0
    )
    assert stage.of_type(m.TurnMeasured)[0].metrics["drafted_tokens"] == 7


def test_a_short_word_during_the_reply_that_ends_as_nothing_lets_the_reply_go_on() -> None:
    stage = Stage()
    stage.asks("what time is it")
    stage.generates(ANSWER)
    stage.starts_speaking()
    stage.ends(None)
    stage.speaks_all()
    assert not stage.of_type(m.AudioFlushed)
    assert stage.of_type(m.ReplyFinished)[0].reason == "completed"


def test_without_interruptions_a_second_utterance_waits_for_the_first_reply() -> None:
    stage = Stage(NO_INTERRUPTION)
    stage.asks("one")
    stage.asks("two")
    assert len(stage.engine.commits) == 1
    stage.generates("First.")
    stage.speaks_all()
    assert len(stage.engine.commits) == 2
    stage.generates("Second.")
    stage.speaks_all()
    assert [event.text for event in stage.of_type(m.ReplyFinished)] == ["First.", "Second."]


def test_too_many_waiting_turns_drop_the_oldest_and_say_so() -> None:
    stage = Stage(NO_INTERRUPTION)
    for number in range(MAX_QUEUED_TURNS + 2):
        stage.asks(f"number {number}")
    assert [error.code for error in stage.of_type(m.ErrorReported)] == ["turn_dropped"]


def test_deltas_of_a_reply_that_was_stopped_are_ignored() -> None:
    stage = Stage()
    stage.asks("one")
    stage.session.on_command(m.ReplyCancelled(), 0.5)
    stage.generates("Late.", turn=0, reason="cancelled")
    assert not stage.of_type(m.ReplyText)
    assert [event.reason for event in stage.of_type(m.ReplyFinished)] == ["cancelled"]


def test_typed_words_are_drafted_on_and_answered_on_enter() -> None:
    stage = Stage()
    stage.session.on_command(m.TextTyped("what ti", final=False), 0.0)
    stage.session.on_command(m.TextTyped("what time is it", final=True), 1.0)
    assert len(stage.engine.updates) == 1 and len(stage.engine.commits) == 1
    stage.generates(ANSWER)
    stage.speaks_all()
    assert stage.of_type(m.TranscriptFinal)[0].text == "what time is it"
    assert stage.of_type(m.ReplyFinished)[0].text == ANSWER


def test_the_draft_for_typed_words_is_shown_before_they_are_sent() -> None:
    stage = Stage()
    stage.session.on_command(m.TextTyped("what ti", final=False), 0.0)
    stage.drafts(ANSWER)
    assert stage.of_type(m.DraftShown)[-1] == m.DraftShown("", 2, ANSWER)


def test_ending_an_utterance_that_never_began_is_answered_with_empty_words() -> None:
    stage = Stage()
    stage.session.on_command(m.AudioCommitted(), 0.0)
    assert [event.text for event in stage.of_type(m.TranscriptFinal)] == [""]
    stage.starts_speaking()
    stage.listener.script = [[]]
    stage.session.on_command(m.AudioCommitted(), 0.0)
    assert len(stage.of_type(m.TranscriptFinal)) == 1  # the open one ends when its words are in


def test_typing_while_the_caller_speaks_changes_nothing() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.session.on_command(m.TextTyped("hello", final=True), 1.0)
    assert not stage.engine.commits


def test_a_reply_can_be_requested_for_messages_added_by_the_client() -> None:
    stage = Stage()
    stage.session.on_command(m.MessageAdded("x", "user", "hi"), 0.0)
    stage.session.on_command(m.ReplyRequested(), 0.0)
    assert bytes(stage.engine.commits[0].token_ids).decode() == "be briefhi|assistant:"
    stage.generates("Hello.")
    stage.speaks_all()
    assert stage.of_type(m.ReplyFinished)[0].reason == "completed"


def test_bad_requests_are_reported_and_the_session_goes_on() -> None:
    stage = Stage()
    stage.session.on_command(m.MessageDeleted("nope"), 0.0)
    stage.session.on_command(m.ReplyTruncated("nope", 100), 0.0)
    assert [error.code for error in stage.of_type(m.ErrorReported)] == ["item_not_found"] * 2
    stage.asks("still there?")
    assert len(stage.engine.commits) == 1


def test_new_sampling_takes_a_new_engine_session_and_other_settings_do_not() -> None:
    stage = Stage()
    stage.session.on_command(m.SettingsChanged(instructions="be rude", silence_ms=700), 0.0)
    assert len(stage.engine.opened) == 1
    assert stage.listener.settings.silence_ms == 700
    stage.session.on_command(m.SettingsChanged(temperature=0.7), 0.0)
    assert stage.engine.opened[-1].sampling.temperature == 0.7
    assert stage.engine.closed == ["engine-1"]
    stage.asks("hello")
    assert bytes(stage.engine.commits[0].token_ids).decode().startswith("be rude")


def test_an_utterance_is_only_remembered_when_no_reply_is_to_be_made() -> None:
    stage = Stage(replace(SessionSettings(), create_response=False))
    stage.asks("hello")
    assert not stage.engine.commits
    stage.session.on_command(m.ReplyRequested(), 0.0)
    assert bytes(stage.engine.commits[0].token_ids).decode() == "be briefhello|assistant:"


def test_a_failed_decode_and_a_failed_reply_are_reported() -> None:
    stage = Stage()
    stage.hears(heard.AsrFailed(1, "no memory"))
    stage.asks("hello")
    stage.session.on_engine_event(
        thought.ReplyDone(stage.engine_id, 0, "error", thought.TurnStats(), error="step failed"),
        1.0,
    )
    assert [e.code for e in stage.of_type(m.ErrorReported)] == [
        "recognition_failed",
        "reply_failed",
    ]
    assert stage.of_type(m.ReplyFinished)[0].reason == "failed"
    stage.asks("again")
    assert len(stage.engine.commits) == 2


def test_clearing_the_audio_forgets_the_open_utterance() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.listener.script = [[heard.UtteranceEnded(1, 0.1, 0.1, None, "cleared")]]
    stage.session.on_command(m.AudioCleared(), 0.1)
    assert stage.listener.num_resets == 1
    stage.asks("hello")
    assert len(stage.engine.commits) == 1


def test_closing_gives_everything_back() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time is it", at_pause=True)
    stage.drafts(ANSWER)
    stage.session.close()
    assert stage.engine.closed == ["engine-1"]
    assert stage.voice.cancelled == list(stage.voice.spoken)


def test_a_prompt_that_the_engine_refuses_costs_the_turn_and_not_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()

    def refuse(session_id: str, snapshot: Snapshot) -> int:
        raise PromptTooLong(snapshot.num_tokens, 10)

    with monkeypatch.context() as patched:
        patched.setattr(stage.engine, "commit", refuse)
        patched.setattr(stage.engine, "update", refuse)
        stage.asks("far too much")
    assert [error.code for error in stage.of_type(m.ErrorReported)] == ["reply_failed"]
    stage.asks("less")
    assert len(stage.engine.commits) == 1


def test_a_requested_reply_may_be_shorter_than_the_session_s() -> None:
    stage = Stage()
    stage.session.on_command(m.MessageAdded("x", "user", "hi"), 0.0)
    stage.session.on_command(m.ReplyRequested(max_tokens=7), 0.0)
    stage.generates("Hello.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("hello")
    assert [snapshot.max_reply_tokens for snapshot in stage.engine.commits] == [7, None]


def test_a_requested_reply_may_have_instructions_of_its_own() -> None:
    stage = Stage()
    stage.session.on_command(m.MessageAdded("x", "user", "hi"), 0.0)
    stage.session.on_command(m.ReplyRequested(instructions="be rude"), 0.0)
    assert bytes(stage.engine.commits[0].token_ids).decode() == "be rudehi|assistant:"
    stage.generates("Go away.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("hello")
    assert bytes(stage.engine.commits[1].token_ids).decode().startswith("be brief")


def test_a_long_utterance_late_in_a_long_call_is_drafted_on_and_answered() -> None:
    stage = Stage(max_prompt_tokens=400)
    for number in range(20):
        stage.asks(f"question number {number}")
        stage.generates("An answer. ")
        stage.speaks_all()
        stage.waits(1.5)
    num_updates = len(stage.engine.updates)
    words = "word " * 60
    stage.starts_speaking()
    for end in range(50, len(words), 50):
        stage.says(words[:end])
    stage.ends(words)
    assert len(stage.engine.updates) == num_updates + 5
    assert words in bytes(stage.engine.commits[-1].token_ids).decode()
    assert not stage.of_type(m.ErrorReported)


def test_a_client_that_restores_more_than_fits_has_its_first_turn_answered() -> None:
    stage = Stage(max_prompt_tokens=400)
    for number in range(50):
        stage.session.on_command(m.MessageAdded(str(number), "user", "x" * 30), 0.0)
    stage.asks("hello")
    assert len(stage.engine.commits) == 1
    assert not stage.of_type(m.ErrorReported)


def test_a_turn_that_waits_while_the_settings_change_is_answered_under_the_new_ones() -> None:
    stage = Stage(NO_INTERRUPTION)
    stage.asks("one")
    stage.asks("two")
    stage.session.on_command(m.SettingsChanged(temperature=0.7), 0.0)
    assert stage.engine.closed == ["engine-1"] and len(stage.engine.commits) == 2
    stage.generates("Second.")
    stage.speaks_all()
    assert [event.text for event in stage.of_type(m.ReplyFinished)] == ["", "Second."]


def test_words_already_drafted_on_are_drafted_on_again_under_new_sampling() -> None:
    stage = Stage()
    stage.starts_speaking()
    stage.says("what time is it")
    stage.session.on_command(m.SettingsChanged(temperature=0.7), 0.0)
    stage.says("what time is it")
    assert len(stage.engine.updates) == 2


def test_settings_that_the_engine_does_not_take_now_are_refused_and_the_old_ones_stay() -> None:
    stage = Stage()
    stage.asks("one")
    stage.engine.rest = "it is given a rest"
    change = m.SettingsChanged(instructions="be rude", temperature=0.7, silence_ms=700)
    stage.session.on_command(change, 0.0)
    (error,) = stage.of_type(m.ErrorReported)
    assert error.code == "settings_refused" and "given a rest" in error.message
    assert not stage.of_type(m.AudioFlushed) and stage.listener.settings.silence_ms == 500
    stage.generates("First.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("two")
    assert bytes(stage.engine.commits[-1].token_ids).decode().startswith("be brief")


def interruptible_with_a_turn_waiting() -> Stage:
    stage = Stage(NO_INTERRUPTION)
    stage.asks("one")
    stage.asks("two")
    stage.session.on_command(m.SettingsChanged(interrupt_response=True), 0.0)
    return stage


def words_committed(stage: Stage) -> list[str]:
    prompts = [bytes(snapshot.token_ids).decode() for snapshot in stage.engine.commits]
    return [prompt.removesuffix("|assistant:").split("|")[-1] for prompt in prompts]


def test_words_typed_while_an_earlier_turn_waits_are_answered_after_it() -> None:
    stage = interruptible_with_a_turn_waiting()
    stage.session.on_command(m.TextTyped("three", final=True), 0.0)
    stage.generates("Second.")
    stage.speaks_all()
    stage.waits(1.5)
    assert words_committed(stage)[1:] == ["two", "three"]


def test_words_spoken_while_an_earlier_turn_waits_are_answered_after_it() -> None:
    stage = interruptible_with_a_turn_waiting()
    stage.starts_speaking()
    stage.waits(0.3)
    stage.ends("three")
    stage.generates("Second.")
    stage.speaks_all()
    stage.waits(1.5)
    assert words_committed(stage)[1:] == ["two", "three"]


def test_an_interruption_without_words_lets_the_turn_that_waits_be_answered() -> None:
    stage = interruptible_with_a_turn_waiting()
    stage.starts_speaking()
    stage.waits(0.3)
    stage.ends(None)
    assert words_committed(stage)[1:] == ["two"]
    stage.generates("Second.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("three")
    assert words_committed(stage)[2:] == ["three"]


def test_words_that_the_models_template_does_not_take_cost_the_turn_and_not_the_session() -> None:
    stage = Stage()
    stage.session.on_command(m.MessageAdded("x", "assistant", "odd"), 0.0)
    stage.asks("odd")
    codes = [error.code for error in stage.of_type(m.ErrorReported)]
    assert codes == ["prompt_rejected", "reply_failed"]
    assert not stage.engine.updates
    stage.asks("hello")
    assert len(stage.engine.commits) == 1


def test_a_request_that_waits_keeps_its_own_instructions_and_no_other_turn_has_them() -> None:
    stage = interruptible_with_a_turn_waiting()
    stage.session.on_command(m.ReplyRequested(instructions="be rude"), 0.0)
    stage.generates("Second.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.generates("Third.")
    stage.speaks_all()
    stage.waits(1.5)
    stage.asks("four")
    prompts = [bytes(snapshot.token_ids).decode() for snapshot in stage.engine.commits]
    assert [prompt[:8] for prompt in prompts] == ["be brief", "be brief", "be rudeu", "be brief"]


def test_instructions_too_long_for_one_reply_are_refused_before_anything_is_stopped() -> None:
    stage = Stage(max_prompt_tokens=400)
    stage.asks("hello")
    stage.session.on_command(m.ReplyRequested(instructions="be brief. " * 100), 0.0)
    assert [error.code for error in stage.of_type(m.ErrorReported)] == ["instructions_too_long"]
    assert not stage.of_type(m.AudioFlushed)
