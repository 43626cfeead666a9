from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio import SAMPLE_RATE_HZ
from asr.events import (
    AsrFailed,
    AsrRequest,
    DecodeRequest,
    DecodeResult,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    TurnCheckRequest,
)
from asr.settings import ListenerSettings
from tests.asr.scripted import Caller, decode, level, silence, speech, words_in

SURE = ListenerSettings()
CLIENT_COMMITS = ListenerSettings(turn_detection="none")


def kinds(caller: Caller) -> list[str]:
    return [type(event).__name__ for event in caller.events]


def test_speech_then_silence_is_one_utterance_with_its_transcript() -> None:
    caller = Caller().says(silence(0.5), speech(1.0), silence(1.6))
    assert len(caller.ends) == 1
    assert caller.finals[0] == words_in(speech(1.0))
    assert caller.ends[0].speech_end_s == pytest.approx(1.5, abs=0.04)
    order = kinds(caller)
    assert order[0] == "SpeechStarted"
    assert order[-1] == "UtteranceEnded"
    assert order.index("SpeechPaused") < order.index("UtteranceEnded")


def test_silence_and_clicks_give_no_utterance() -> None:
    click = level(0.9, 0.05)
    caller = Caller().says(silence(1), click, silence(1), click, silence(2)).hangs_up()
    assert caller.events == []
    assert caller.requests == []


def test_speech_in_the_first_tenth_of_a_second_is_heard() -> None:
    caller = Caller().says(speech(0.5), silence(2))
    assert caller.finals == [words_in(speech(0.5))]
    assert isinstance(caller.events[0], SpeechStarted)
    assert caller.events[0].at_s == 0.0


def test_speech_resuming_before_the_end_reopens_the_utterance() -> None:
    first, second = speech(1.0, 1), speech(1.0, 2)
    caller = Caller(turn_probability=lambda request: 0.001)
    caller.says(first, silence(0.4), second, silence(2))
    assert "SpeechResumed" in kinds(caller)
    assert caller.finals == [words_in(np.concatenate([first, silence(0.4), second]))]


def test_an_incomplete_sounding_utterance_ends_by_the_hard_bound() -> None:
    caller = Caller(turn_probability=lambda request: 0.0, answer=lambda r: text_of(r, "I would"))
    caller.says(speech(1.0), silence(2.0))
    assert len(caller.ends) == 1
    assert caller.ends[0].at_s - 1.0 <= 1.5 + 0.1


@pytest.mark.parametrize(("eagerness", "within_s"), [("auto", 0.35), ("low", 0.85)])
def test_a_complete_sounding_one_ends_soon(
    eagerness: Literal["auto", "low"], within_s: float
) -> None:
    settings = ListenerSettings(eagerness=eagerness)
    caller = Caller(settings, answer=lambda r: text_of(r, "What time is it?"))
    caller.says(speech(1.0), silence(2.0))
    assert within_s - 0.25 < caller.ends[0].at_s - 1.0 <= within_s


def test_a_greeting_waits_for_what_follows() -> None:
    caller = Caller(answer=lambda r: text_of(r, "Hello?"))
    caller.says(speech(0.5), silence(0.9), speech(0.5, 1), silence(2))
    assert len(caller.ends) == 1


@pytest.mark.parametrize(
    ("words", "is_asked"),
    [("Go forward", True), ("What is the", False), ("", False)],
)
def test_the_sound_of_a_pause_is_asked_about_only_where_the_words_leave_it_open(
    words: str, is_asked: bool
) -> None:
    caller = Caller(answer=lambda r: text_of(r, words)).says(speech(1.0), silence(2.0))
    assert any(isinstance(request, TurnCheckRequest) for request in caller.requests) is is_asked


def test_the_end_waits_for_a_late_pause_decode() -> None:
    caller = Caller(delay_s=lambda request: 3.0 if is_final(request) else 0.0)
    caller.says(speech(1.0), silence(2.0))
    assert caller.ends == []
    caller.says(silence(6.0))  # the turn check that the words call for comes 3 s after them
    assert caller.finals == [words_in(speech(1.0))]


def test_a_late_decode_does_not_spill_into_the_next_utterance() -> None:
    caller = Caller(delay_s=lambda request: 1.7 if is_final(request) else None)
    first, second = speech(1.0, 1), speech(1.0, 2)
    caller.says(first, silence(1.6), second, silence(8))
    assert caller.finals == [words_in(first), words_in(second)]


def test_results_of_an_ended_utterance_are_ignored() -> None:
    caller = Caller().says(speech(1.0), silence(2.0))
    old = caller.requests[0]
    assert caller.listener.on_result(DecodeResult(old.utterance, old.revision, "late")) == []


def test_a_failed_decode_is_told_and_the_newest_partial_stands() -> None:
    def fails_at_pause(request: DecodeRequest) -> DecodeResult:
        if request.kind == "partial":
            return decode(request)
        return DecodeResult(request.utterance, request.revision, "", error="out of memory")

    caller = Caller(answer=fails_at_pause).says(speech(1.0), silence(2.0))
    assert any(isinstance(event, AsrFailed) for event in caller.events)
    assert caller.finals[0] == caller.transcripts[-2].text != ""


def test_text_dropped_by_the_guards_ends_with_no_transcript() -> None:
    caller = Caller(answer=lambda r: text_of(r, "")).says(speech(1.0), silence(2.0))
    assert caller.finals == [None]


def test_commit_ends_the_utterance_with_the_audio_so_far() -> None:
    caller = Caller(settings=ListenerSettings(turn_detection="none")).says(speech(1.0))
    caller.take(caller.listener.commit())
    caller.says(silence(0.1))
    assert caller.ends[0].reason == "commit"
    assert caller.finals == [words_in(speech(1.0))]


def test_without_turn_detection_only_commit_ends() -> None:
    caller = Caller(settings=ListenerSettings(turn_detection="none"))
    caller.says(speech(1.0), silence(5.0))
    assert caller.ends == []
    caller.take(caller.listener.commit())
    assert [end.reason for end in caller.ends] == ["commit"]


@pytest.mark.parametrize("answer_s", [0.0, 5.0])
def test_ten_minutes_of_silence_before_the_commit_are_not_kept(answer_s: float) -> None:
    first, second = speech(1.0, 1), speech(1.0, 2)
    caller = Caller(CLIENT_COMMITS, delay_s=lambda request: answer_s).says(first)
    for _ in range(10):
        caller.says(silence(60.0), chunk_samples=16_000)
    buffer = caller.listener._buffer
    assert buffer.end - buffer.start <= 10 * SAMPLE_RATE_HZ
    assert buffer._data.nbytes <= 4 << 20
    caller.says(second, silence(0.3))
    caller.take(caller.listener.commit())
    caller.says(silence(6.0))
    assert caller.finals == [f"{words_in(first)} {words_in(second)}"]
    decoded_s = [len(r.samples) / SAMPLE_RATE_HZ for r in caller.requests if is_final(r)]
    assert max(decoded_s) < 1.5


def test_a_commit_after_a_long_silence_has_the_words_before_it() -> None:
    caller = Caller(CLIENT_COMMITS).says(speech(1.0), silence(20.0))
    told = len(caller.transcripts)
    caller.take(caller.listener.commit())
    assert caller.finals == [words_in(speech(1.0))]
    assert len(caller.transcripts) == told  # the pause's was the last


@pytest.mark.parametrize("answer_s", [0.0, 5.0])
def test_the_language_of_the_words_is_told_however_late_they_come(answer_s: float) -> None:
    def german(request: DecodeRequest) -> DecodeResult:
        return replace(decode(request), language="de")

    caller = Caller(CLIENT_COMMITS, answer=german, delay_s=lambda request: answer_s)
    caller.says(speech(0.25), silence(10.0))
    caller.take(caller.listener.commit())
    assert [end.transcript and end.transcript.language for end in caller.ends] == ["de"]


def test_turn_detection_that_comes_on_in_a_long_silence_ends_the_utterance() -> None:
    caller = Caller(CLIENT_COMMITS, turn_probability=lambda r: 0.0).says(speech(1.0), silence(20.0))
    caller.listener.configure(ListenerSettings(end_probability_grace_ms=300))
    caller.says(silence(0.5))
    assert caller.finals == [words_in(speech(1.0))]
    assert not any(isinstance(request, TurnCheckRequest) for request in caller.requests)


def test_what_is_known_about_a_long_utterance_is_bounded() -> None:
    caller = Caller(CLIENT_COMMITS)
    for seed in range(70):
        caller.says(speech(0.5, seed), silence(3.5), chunk_samples=512)
        for transcript in caller.transcripts[-3:]:
            caller.take(caller.listener.on_end_probability(0, transcript.revision, 0.1))
    utterance = caller.listener._utterance
    assert utterance is not None
    assert len(utterance.end_probabilities) <= 64
    assert len(caller.listener._request_ends) <= 10


def test_commit_in_silence_ends_nothing() -> None:
    caller = Caller().says(silence(1.0))
    assert caller.listener.commit() == []
    caller.says(speech(1.0), silence(2.0))
    assert len(caller.ends) == 1


def test_a_stream_that_stops_in_a_word_still_ends() -> None:
    caller = Caller().says(speech(0.777)).hangs_up()
    assert caller.finals == [words_in(speech(0.777))]
    assert caller.ends[0].reason == "finish"


def test_reset_ends_the_utterance_with_nothing_said() -> None:
    caller = Caller().says(speech(1.0))
    caller.take(caller.listener.reset())
    assert [end.reason for end in caller.ends] == ["cleared"]
    assert caller.finals == [None]
    caller.says(speech(1.0, 3), silence(2.0))
    assert caller.finals[1] == words_in(speech(1.0, 3))


@pytest.mark.parametrize("silence_ms", [200, 500, 900])
def test_server_vad_waits_for_exactly_its_silence(silence_ms: int) -> None:
    settings = ListenerSettings(turn_detection="server_vad", silence_ms=silence_ms)
    caller = Caller(settings=settings).says(speech(1.0), silence(2.0))
    assert caller.ends[0].at_s - 1.0 == pytest.approx(silence_ms / 1000, abs=0.04)
    assert not any(isinstance(request, TurnCheckRequest) for request in caller.requests)


def test_eagerness_moves_the_end() -> None:
    ends_s = []
    for eagerness in ("high", "medium", "low"):
        caller = Caller(settings=ListenerSettings(eagerness=eagerness))
        caller.says(speech(1.0), silence(2.5))
        ends_s.append(caller.ends[0].at_s)
    assert ends_s == sorted(ends_s)
    assert ends_s[0] < ends_s[-1]


def test_the_reply_models_evidence_brings_the_end_forward() -> None:
    undecided = Caller(turn_probability=lambda request: 0.3).says(speech(1.0), silence(0.4))
    assert undecided.ends == []
    told = undecided.transcripts[-1]
    undecided.take(undecided.listener.on_end_probability(0, told.revision, 0.999))
    undecided.says(silence(0.1))
    assert len(undecided.ends) == 1


@pytest.mark.parametrize(("probability", "is_over"), [(0.999, True), (0.05, False)])
def test_a_turn_check_that_late_evidence_makes_needless_is_not_waited_for(
    probability: float, is_over: bool
) -> None:
    caller = Caller(delay_s=lambda r: 9.0 if isinstance(r, TurnCheckRequest) else 0.0)
    caller.says(speech(1.0), silence(0.4))
    assert any(isinstance(request, TurnCheckRequest) for request in caller.requests)
    caller.take(caller.listener.on_end_probability(0, caller.transcripts[-1].revision, probability))
    caller.says(silence(0.1))
    assert bool(caller.ends) is is_over


def test_evidence_about_an_older_transcript_changes_nothing() -> None:
    caller = Caller(turn_probability=lambda request: 0.3).says(speech(1.0), silence(0.4))
    caller.take(caller.listener.on_end_probability(0, caller.transcripts[0].revision, 0.999))
    caller.says(silence(0.1))
    assert caller.ends == []


def test_the_end_waits_a_moment_for_the_reply_models_evidence() -> None:
    sure = Caller(replace_grace(300), answer=lambda r: text_of(r, "What time is it?"))
    sure.says(speech(1.0), silence(0.3))
    assert sure.ends == []
    sure.says(silence(0.2))
    assert len(sure.ends) == 1


def test_a_long_utterance_is_cut_at_a_pause_and_loses_no_word() -> None:
    parts = [speech(6.0, seed) for seed in range(4)]
    audio = [piece for part in parts for piece in (part, silence(0.3))]
    caller = Caller(
        turn_probability=lambda r: 0.0, answer=lambda r: text_of(r, f"{r.start_s:.0f} the")
    )
    caller.says(*audio, silence(2.0))
    finals = [r for r in caller.requests if isinstance(r, DecodeRequest) and r.kind == "pause"]
    assert max(len(request.samples) for request in finals) < 15 * SAMPLE_RATE_HZ
    assert len(caller.ends) == 1
    assert len((caller.finals[0] or "").split()) == 4  # two segments of two words


def test_speech_without_pauses_is_cut_where_it_sounds_least_like_speech() -> None:
    dip_s = 17.0
    audio = [speech(dip_s, 1), level(0.45, 0.064), speech(13.0, 2)]
    caller = Caller().says(*audio, silence(2.0))
    segments = [r for r in caller.requests if isinstance(r, DecodeRequest) and r.kind == "segment"]
    assert len(segments) == 1
    end_s = segments[0].start_s + len(segments[0].samples) / SAMPLE_RATE_HZ
    assert end_s == pytest.approx(dip_s, abs=0.1)
    assert len(caller.ends) == 1


def test_partials_come_at_a_steady_step_and_wait_for_the_one_that_is_out() -> None:
    prompt = Caller().says(speech(3.0))
    assert len(partials(prompt)) == pytest.approx(3.0 / 0.32, abs=1)
    busy = Caller(delay_s=lambda request: 0.45).says(speech(3.0))
    assert len(partials(busy)) == pytest.approx(3.0 / 0.48, abs=1)
    stuck = Caller(delay_s=lambda request: None).says(speech(3.0))
    assert len(partials(stuck)) == pytest.approx(3.0 / 0.61, abs=1)


def test_memory_follows_the_open_segment() -> None:
    caller = Caller()
    for seed in range(20):
        caller.says(speech(2.0, seed), silence(1.5))
    assert len(caller.ends) == 20
    assert caller.listener._buffer.end - caller.listener._buffer.start <= 2 * SAMPLE_RATE_HZ


# ---- properties

PIECES = st.lists(st.tuples(st.floats(0.1, 2.5), st.floats(0.03, 1.6)), min_size=1, max_size=4)


LONG_CALLS = st.lists(st.tuples(st.floats(2.0, 22.0), st.floats(0.03, 0.7)), min_size=2, max_size=3)


def call_of(pieces: list[tuple[float, float]]) -> np.ndarray:
    audio = [silence(0.2)]
    for seed, (speech_s, silence_s) in enumerate(pieces):
        audio += [speech(speech_s, seed), silence(silence_s)]
    return np.concatenate([*audio, silence(2.0)])


def varied(request: DecodeRequest) -> DecodeResult:
    """Texts of every kind of ending, as a function of the audio alone."""
    text = words_in(request.samples)
    return text_of(request, text + ("", ".", "?", ",", " the")[len(request.samples) // 512 % 5])


def varied_turn(request: TurnCheckRequest) -> float:
    return (len(request.samples) // 512 % 10) / 10


def reference(audio: np.ndarray) -> Caller:
    return Caller(answer=varied, turn_probability=varied_turn).says(audio).hangs_up()


@settings(max_examples=12)
@given(PIECES, st.integers(16, 512), st.integers(0, 2**32 - 1))
def test_small_chunks_of_any_size_give_the_same_events(
    pieces: list[tuple[float, float]], chunk_samples: int, seed: int
) -> None:
    audio = call_of(pieces)
    sizes = random.Random(seed)
    chunks = iter(lambda: sizes.randint(16, chunk_samples), None)
    caller = Caller(answer=varied, turn_probability=varied_turn)
    caller.says(audio, chunk_samples=chunks).hangs_up()
    assert caller.events == reference(audio).events


@settings(max_examples=12)
@given(PIECES, st.lists(st.integers(16, 32_000), min_size=1, max_size=30))
def test_any_chunking_gives_the_same_ends(
    pieces: list[tuple[float, float]], sizes: list[int]
) -> None:
    audio = call_of(pieces)
    caller = Caller(answer=varied, turn_probability=varied_turn)
    caller.says(audio, chunk_samples=sizes).hangs_up()
    assert ends_of(caller) == ends_of(reference(audio))


@settings(max_examples=25)
@given(PIECES, st.integers(0, 2**32 - 1), st.floats(0.0, 3.0))
def test_any_load_gives_the_same_ends_and_rising_revisions(
    pieces: list[tuple[float, float]], seed: int, slowest_s: float
) -> None:
    audio = call_of(pieces)
    dice = random.Random(seed)

    def delay_s(request: AsrRequest) -> float | None:
        if not is_final(request) and dice.random() < 0.3:
            return None  # a dropped partial
        return dice.uniform(0.0, slowest_s)

    caller = Caller(answer=varied, turn_probability=varied_turn, delay_s=delay_s)
    caller.says(audio).hangs_up()
    assert ends_of(caller) == ends_of(reference(audio))
    revisions = [transcript.revision for transcript in caller.transcripts]
    assert revisions == sorted(set(revisions))
    numbers = [end.utterance for end in caller.ends]
    started = [e.utterance for e in caller.events if isinstance(e, SpeechStarted)]
    assert numbers == sorted(set(numbers)) == started


@settings(max_examples=10)
@given(LONG_CALLS, st.sampled_from([SURE, CLIENT_COMMITS]), st.integers(0, 2**32 - 1))
def test_requests_that_are_dropped_as_stale_change_no_end(
    pieces: list[tuple[float, float]], asked: ListenerSettings, seed: int
) -> None:
    audio = call_of(pieces)
    dice = random.Random(seed)
    caller = Caller(
        asked,
        answer=varied,
        turn_probability=varied_turn,
        delay_s=lambda request: dice.uniform(0.0, 3.0),
        drops_stale=True,
    )
    caller.says(audio).hangs_up()
    prompt = Caller(asked, answer=varied, turn_probability=varied_turn).says(audio).hangs_up()
    assert ends_of(caller) == ends_of(prompt)


LONG_PAUSES = st.lists(st.tuples(st.floats(0.1, 2.5), st.floats(0.03, 5.0)), min_size=1, max_size=4)


@settings(max_examples=25)
@given(LONG_PAUSES, st.integers(16, 32_000), st.integers(0, 2**32 - 1), st.floats(0.0, 6.0))
def test_what_the_client_commits_is_a_function_of_the_audio_alone(
    pieces: list[tuple[float, float]], chunk_samples: int, seed: int, slowest_s: float
) -> None:
    audio = call_of(pieces)
    dice = random.Random(seed)
    caller = Caller(CLIENT_COMMITS, answer=varied, delay_s=lambda r: dice.uniform(0.0, slowest_s))
    caller.says(audio, chunk_samples=chunk_samples).hangs_up()
    prompt = Caller(CLIENT_COMMITS, answer=varied).says(audio).hangs_up()
    assert ends_of(caller) == ends_of(prompt)


@settings(max_examples=12)
@given(PIECES)
def test_pauses_and_resumptions_alternate(pieces: list[tuple[float, float]]) -> None:
    state = "ended"
    follows = {"SpeechStarted": ("ended",), "SpeechPaused": ("started", "resumed")}
    for event in reference(call_of(pieces)).events:
        match event:
            case SpeechStarted():
                assert state in follows["SpeechStarted"]
                state = "started"
            case SpeechPaused():
                assert state in follows["SpeechPaused"]
                state = "paused"
            case SpeechResumed():
                assert state == "paused"
                state = "resumed"
            case _ if type(event).__name__ == "UtteranceEnded":
                assert state != "ended"
                state = "ended"


# ---- helpers


def text_of(request: DecodeRequest, text: str) -> DecodeResult:
    return DecodeResult(request.utterance, request.revision, text)


def is_final(request: AsrRequest) -> bool:
    return not isinstance(request, DecodeRequest) or request.kind != "partial"


def partials(caller: Caller) -> list[AsrRequest]:
    return [request for request in caller.requests if not is_final(request)]


def replace_grace(grace_ms: int) -> ListenerSettings:
    return replace(SURE, end_probability_grace_ms=grace_ms)


def ends_of(caller: Caller) -> list[tuple[int, float, float, str | None, str]]:
    return [
        (e.utterance, e.at_s, e.speech_end_s, e.transcript and e.transcript.text, e.reason)
        for e in caller.ends
    ]
