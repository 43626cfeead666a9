"""The speech thread: order, replacement, cancelling, failures. The synthesizer is scripted, with
gates instead of waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tts.synthesizer import SynthesisFailed, Synthesizer
from tts.worker import DuplicateSpeechKey, SpeechDone, SpeechQueueFull, SpeechRequest, SpeechWorker

TIMEOUT_S = 10.0


class ScriptedVoice(Synthesizer):
    """One chunk of 240 samples per word. "gate" blocks before its chunk until `gate` is set; "fail"
    and "bug" raise.
    """

    sample_rate_hz = 24_000

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reached_gate = threading.Event()
        self.spoken: list[str] = []
        self.is_warm = False

    def synthesize(self, text: str) -> Iterator[np.ndarray]:
        self.spoken.append(text)
        for word in text.split():
            if word == "gate":
                self.reached_gate.set()
                assert self.gate.wait(TIMEOUT_S)
            if word == "fail":
                raise SynthesisFailed("scripted")
            if word == "bug":
                raise KeyError("scripted bug")
            yield np.zeros(240, np.float32)

    def warm_up(self) -> None:
        self.is_warm = True


class Receiver:
    def __init__(self) -> None:
        self.chunks: dict[str, int] = {}
        self.done: dict[str, SpeechDone] = {}
        self.order: list[str] = []
        self._changed = threading.Condition()

    def on_chunk(self, chunk) -> None:
        assert chunk.index == self.chunks.get(chunk.key, 0)
        self.chunks[chunk.key] = chunk.index + 1

    def on_done(self, done: SpeechDone) -> None:
        with self._changed:
            assert done.key not in self.done, "ended twice"
            self.done[done.key] = done
            self.order.append(done.key)
            self._changed.notify_all()

    def outcome(self, key: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.done, TIMEOUT_S)
            return self.done[key].outcome


@pytest.fixture
def voice():
    return ScriptedVoice()


@pytest.fixture
def receiver():
    return Receiver()


@pytest.fixture
def worker(voice):
    worker = SpeechWorker(voice, max_pending=3)
    worker.start()
    yield worker
    voice.gate.set()
    worker.stop()


@pytest.fixture
def say(worker, receiver):
    def say(key, text="one two", session="s", is_held=False):
        worker.submit(
            SpeechRequest(key, session, text, is_held), receiver.on_chunk, receiver.on_done
        )

    return say


@pytest.fixture
def busy(say, voice):
    """The worker is in the middle of a piece of another session."""
    say("busy", "gate", session="other")
    assert voice.reached_gate.wait(TIMEOUT_S)


def test_a_piece_is_spoken_chunk_by_chunk(say, receiver, voice):
    say("a", "one two three")
    assert receiver.outcome("a") == "spoken"
    assert receiver.chunks == {"a": 3}
    assert receiver.done["a"].audio_s == pytest.approx(0.03)
    assert voice.is_warm


def test_committed_pieces_go_before_held_ones(busy, say, receiver, voice):
    say("held", is_held=True)
    say("b")
    say("c")
    voice.gate.set()
    assert receiver.outcome("held") == "spoken"
    assert receiver.order == ["busy", "b", "c", "held"]


def test_a_promoted_piece_takes_its_place_among_the_committed(busy, worker, say, receiver, voice):
    say("held", is_held=True)
    say("b", session="t")
    worker.promote("held")
    voice.gate.set()
    assert receiver.outcome("b") == "spoken"
    assert receiver.order == ["busy", "held", "b"]


def test_a_newer_held_piece_replaces_the_older_one_of_its_session_only(busy, say, receiver, voice):
    say("old", "old", is_held=True)
    say("foreign", "foreign", session="t", is_held=True)
    say("new", "new", is_held=True)
    voice.gate.set()
    assert receiver.outcome("old") == "superseded"
    assert receiver.outcome("new") == "spoken"
    assert receiver.outcome("foreign") == "spoken"
    assert "old" not in voice.spoken


def test_a_running_held_piece_stops_when_a_newer_draft_comes(say, receiver, voice):
    say("old", "gate two three", is_held=True)
    assert voice.reached_gate.wait(TIMEOUT_S)
    say("new", "new", is_held=True)
    voice.gate.set()
    assert receiver.outcome("old") == "superseded"
    assert receiver.outcome("new") == "spoken"
    assert "old" not in receiver.chunks


def test_a_waiting_piece_can_be_cancelled(busy, worker, say, receiver, voice):
    say("a", "unsaid")
    worker.cancel("a")
    voice.gate.set()
    assert receiver.outcome("a") == "cancelled"
    assert "unsaid" not in voice.spoken


def test_a_running_piece_stops_at_the_next_chunk_when_cancelled(busy, worker, receiver, voice):
    worker.cancel("busy")
    worker.cancel("busy")
    worker.cancel("never heard of")
    voice.gate.set()
    assert receiver.outcome("busy") == "cancelled"
    assert receiver.chunks == {}


def test_a_key_may_be_used_again_once_its_piece_was_cancelled(busy, worker, say, receiver, voice):
    say("a")
    with pytest.raises(DuplicateSpeechKey, match="'a'"):
        say("a")
    worker.cancel("a")
    voice.gate.set()
    assert receiver.outcome("a") == "cancelled"
    receiver.done.clear()
    say("a")
    assert receiver.outcome("a") == "spoken"


def test_a_full_queue_drops_the_oldest_held_piece_and_then_refuses(busy, say, receiver, voice):
    say("held", session="x", is_held=True)
    say("b")
    say("c")
    say("d")
    with pytest.raises(SpeechQueueFull, match="3"):
        say("e")
    voice.gate.set()
    assert receiver.outcome("held") == "superseded"
    assert receiver.outcome("d") == "spoken"
    assert "e" not in receiver.done


@pytest.mark.parametrize(("text", "error"), [("one fail", "scripted"), ("bug", "KeyError")])
def test_a_failure_ends_one_piece_and_nothing_else(say, receiver, text, error):
    say("bad", text)
    say("good")
    assert receiver.outcome("bad") == "failed"
    assert receiver.done["bad"].error == error
    assert receiver.outcome("good") == "spoken"


def test_a_receiver_that_raises_does_not_stop_the_others(worker, say, receiver):
    def refuse(_message):
        raise RuntimeError("loop is closed")

    worker.submit(SpeechRequest("a", "s", "one"), refuse, refuse)
    say("b")
    assert receiver.outcome("b") == "spoken"


@pytest.mark.parametrize("culprit", ["warm_up", "on_busy"])
def test_nothing_that_raises_on_the_thread_ends_it(voice, receiver, culprit):
    def fails(*told):
        raise KeyError("scripted bug")

    if culprit == "warm_up":
        voice.warm_up = fails
        worker = SpeechWorker(voice)
    else:
        worker = SpeechWorker(voice, on_busy=fails)
    worker.start()
    worker.submit(SpeechRequest("a", "s", "one two"), receiver.on_chunk, receiver.on_done)
    assert receiver.outcome("a") == "spoken"
    worker.stop()


def test_stopping_reports_everything_unfinished_as_cancelled(busy, worker, say, receiver, voice):
    say("a")
    voice.gate.set()
    worker.stop()
    worker.stop()
    assert receiver.outcome("a") in ("cancelled", "spoken")
    assert set(receiver.done) == {"busy", "a"}


def test_inline_speech_gives_all_chunks_at_once(voice):
    result = SpeechWorker(voice).run_inline(SpeechRequest("k", "s", "one two"))
    assert [chunk.index for chunk in result.chunks] == [0, 1]
    assert (result.done.key, result.done.outcome) == ("k", "spoken")
    assert result.done.audio_s == pytest.approx(0.02)


def test_an_inline_failure_is_reported_not_raised(voice):
    result = SpeechWorker(voice).run_inline(SpeechRequest("k", "s", "one fail"))
    assert len(result.chunks) == 1
    assert result.done.outcome == "failed" and result.done.error == "scripted"
