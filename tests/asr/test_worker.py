from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from asr.events import (
    AsrResult,
    DecodeRequest,
    DecodeResult,
    TurnCheckRequest,
    TurnCheckResult,
)
from asr.worker import AsrWorker, run_inline

WAIT_S = 5.0


def decode_request(
    revision: int,
    kind: str = "partial",
    seconds: float = 1.0,
    start_s: float = 0.0,
    utterance: int = 0,
) -> DecodeRequest:
    samples = np.zeros(round(16_000 * seconds), np.float32)
    return DecodeRequest(utterance, revision, samples, start_s, kind)  # type: ignore[arg-type]


def turn_check(revision: int) -> TurnCheckRequest:
    return TurnCheckRequest(0, revision, np.zeros(16, np.float32))


class GatedDecoder:
    """Decodes only while its gate is open, and remembers the batches."""

    def __init__(self, error: Exception | None = None, max_batch: int = 4) -> None:
        self.max_batch = max_batch
        self.gate = threading.Event()
        self.started = threading.Event()
        self.batches: list[list[int]] = []
        self.error = error

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodeResult]:
        self.batches.append([request.revision for request in requests])
        self.started.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return [DecodeResult(r.utterance, r.revision, f"text {r.revision}") for r in requests]

    def probability(self, samples: np.ndarray) -> float:
        self.batches.append([-1])
        return 0.7


class Results:
    def __init__(self) -> None:
        self.all: list[AsrResult] = []
        self._changed = threading.Condition()

    def __call__(self, result: AsrResult) -> None:
        with self._changed:
            self.all.append(result)
            self._changed.notify_all()

    def wait(self, count: int) -> list[AsrResult]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, WAIT_S)
            return self.all


@pytest.fixture
def decoder() -> GatedDecoder:
    return GatedDecoder()


@pytest.fixture
def worker(decoder: GatedDecoder):
    """One thread, busy with request 0 until the gate opens."""
    worker = AsrWorker(decoder, decoder, num_threads=1)
    worker.start()
    worker.submit("busy", decode_request(0, "pause"), lambda result: None)
    assert decoder.started.wait(WAIT_S)
    yield worker
    decoder.gate.set()
    worker.stop()


def test_finals_go_first_then_turn_checks_then_partials(worker, decoder) -> None:
    results = Results()
    worker.submit("a", decode_request(1), results)
    worker.submit("b", turn_check(2), results)
    worker.submit("c", decode_request(3, "pause"), results)
    worker.submit("d", decode_request(4, "segment"), results)
    decoder.gate.set()
    results.wait(4)
    assert decoder.batches == [[0], [3], [4], [-1], [1]]


def test_a_newer_partial_drops_the_older_at_once(worker, decoder) -> None:
    results = Results()
    worker.submit("a", decode_request(1), results)
    worker.submit("a", decode_request(2), results)
    assert results.all == [DecodeResult(0, 1, "", dropped=True)]
    decoder.gate.set()
    results.wait(2)
    assert decoder.batches == [[0], [2]]


def test_what_a_closed_segment_hangs_on_is_never_dropped(worker, decoder) -> None:
    results = Results()
    worker.submit("a", decode_request(1, "segment", start_s=0.0), results)
    worker.submit("a", decode_request(2, "pause", start_s=9.0), results)  # frozen by what follows
    worker.submit("a", decode_request(3, "partial", start_s=18.0), results)
    decoder.gate.set()
    texts = {result.revision: result.text for result in results.wait(3)}
    assert texts == {1: "text 1", 2: "text 2", 3: "text 3"}


@pytest.mark.parametrize("kind", ["partial", "pause", "segment"])
def test_a_pauses_decode_is_dropped_once_its_segment_is_decoded_anew(worker, decoder, kind) -> None:
    results, other = Results(), Results()
    worker.submit("a", decode_request(1, "pause", start_s=2.0), results)
    worker.submit("b", decode_request(9, "pause", start_s=2.0), other)
    worker.submit("a", decode_request(2, kind, start_s=2.0), results)
    assert results.all == [DecodeResult(0, 1, "", dropped=True)]
    decoder.gate.set()
    results.wait(2)
    assert other.wait(1) == [DecodeResult(0, 9, "text 9")]


def test_a_turn_check_is_dropped_once_speech_went_on(worker, decoder) -> None:
    results = Results()
    worker.submit("a", turn_check(1), results)
    worker.submit("a", decode_request(2), results)
    assert results.all == [TurnCheckResult(0, 1, None)]


def test_a_turn_check_makes_nothing_stale(worker, decoder) -> None:
    results = Results()
    worker.submit("a", decode_request(1, "pause"), results)
    worker.submit("a", turn_check(2), results)
    decoder.gate.set()
    assert results.wait(2) == [DecodeResult(0, 1, "text 1"), TurnCheckResult(0, 2, 0.7)]


def test_decodes_of_an_utterance_that_was_cleared_are_dropped(worker, decoder) -> None:
    results = Results()
    worker.submit("a", decode_request(1, "segment", start_s=0.0), results)
    worker.submit("a", decode_request(2, utterance=1, start_s=30.0), results)
    assert results.all == [DecodeResult(0, 1, "", dropped=True)]


def test_waiting_partials_of_like_length_share_a_batch(worker, decoder) -> None:
    results = Results()
    for name, seconds in (("a", 2.0), ("b", 2.5), ("c", 9.0), ("d", 3.0)):
        worker.submit(name, decode_request(ord(name), seconds=seconds), results)
    decoder.gate.set()
    results.wait(4)
    assert decoder.batches[1:] == [[ord("a"), ord("b"), ord("d")], [ord("c")]]


def test_a_decoder_that_gains_nothing_by_batches_gets_none(worker, decoder) -> None:
    decoder.max_batch = 1
    results = Results()
    for revision in (1, 2):
        worker.submit(str(revision), decode_request(revision), results)
    decoder.gate.set()
    results.wait(2)
    assert decoder.batches[1:] == [[1], [2]]


def test_cancel_forgets_what_waits(worker, decoder) -> None:
    gone, stays = Results(), Results()
    worker.submit("gone", decode_request(1, "pause"), gone)
    worker.submit("stays", decode_request(2, "pause"), stays)
    worker.cancel("gone")
    assert worker.num_waiting() == 1
    decoder.gate.set()
    stays.wait(1)
    assert gone.all == []


class OnnxFail(Exception):
    """onnxruntime's errors derive from nothing narrower."""


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("out of memory"), "out of memory"), (OnnxFail(), "OnnxFail")],
)
def test_a_failed_decode_is_an_answer_and_the_next_is_served(
    worker, decoder, error: Exception, told: str
) -> None:
    results = Results()
    decoder.error = error
    worker.submit("a", decode_request(1, "pause"), results)
    decoder.gate.set()
    (result,) = results.wait(1)
    assert isinstance(result, DecodeResult)
    assert result.error == told
    decoder.error = None
    worker.submit("a", decode_request(2, "pause"), results)
    assert results.wait(2)[1] == DecodeResult(0, 2, "text 2")


def test_a_receiver_that_fails_silences_no_other(worker, decoder) -> None:
    def fails(result: AsrResult) -> None:
        raise OnnxFail

    results = Results()
    worker.submit("broken", decode_request(1, "pause"), fails)
    worker.submit("other", decode_request(2, "pause"), results)
    decoder.gate.set()
    assert results.wait(1) == [DecodeResult(0, 2, "text 2")]


def test_stop_ends_the_threads(decoder) -> None:
    worker = AsrWorker(decoder, None, num_threads=2)
    worker.start()
    worker.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("asr-")]


def test_a_failed_turn_check_is_no_evidence() -> None:
    class Broken:
        def probability(self, samples: np.ndarray) -> float:
            raise RuntimeError("no")

    assert run_inline(GatedDecoder(), Broken(), turn_check(1)) == TurnCheckResult(0, 1, None)
    assert run_inline(GatedDecoder(), None, turn_check(1)) == TurnCheckResult(0, 1, None)


def test_inline_answers_are_those_of_the_threads(decoder) -> None:
    decoder.gate.set()
    assert run_inline(decoder, decoder, decode_request(3)) == DecodeResult(0, 3, "text 3")
    assert run_inline(decoder, decoder, turn_check(4)) == TurnCheckResult(0, 4, 0.7)
