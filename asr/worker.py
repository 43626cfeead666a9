"""The threads that run the recogniser and Smart Turn for all sessions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.events import (
    AsrRequest,
    AsrResult,
    DecodeRequest,
    DecodeResult,
    TurnCheckRequest,
    TurnCheckResult,
)

logger = logging.getLogger(__name__)

OnResult = Callable[[AsrResult], None]

MAX_BATCH_SPREAD_SAMPLES = 2 * SAMPLE_RATE_HZ  # a short window pays for the longest of its batch


class Decoder(Protocol):
    @property
    def max_batch(self) -> int:
        """Requests that are decoded sooner together than one after the other."""
        ...

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodeResult]: ...


class TurnChecker(Protocol):
    def probability(self, samples: Samples) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    session_id: str
    request: AsrRequest
    on_result: OnResult
    number: int

    @property
    def priority(self) -> tuple[int, int]:
        """Finals, then turn checks, then partials; in order of arrival within each."""
        if not isinstance(self.request, DecodeRequest):
            return 1, self.number
        return (2 if self.request.kind == "partial" else 0), self.number

    @property
    def is_partial(self) -> bool:
        return isinstance(self.request, DecodeRequest) and self.request.kind == "partial"


class AsrWorker:
    """`num_threads` threads over one queue. Every request is answered exactly once by its callback,
    on a worker thread or, for a dropped one, inside `submit`; after `cancel` it is not.

    The queue's bound is one decode and one turn check per session (a newer decode drops what it
    makes stale) beside the decodes of closed segments, of which several seconds of audio make one.
    """

    def __init__(
        self,
        decoder: Decoder,
        turn_checker: TurnChecker | None = None,
        num_threads: int = 2,
    ) -> None:
        self._decoder = decoder
        self._turn_checker = turn_checker
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._numbers = count()
        self._num_running = 0
        self._is_stopping = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"asr-{i}", daemon=True)
            for i in range(self._num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what runs, forget what waits."""
        with self._changed:
            self._is_stopping = True
            self._jobs.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def submit(self, session_id: str, request: AsrRequest, on_result: OnResult) -> None:
        """Queue `request`; never blocks. What waits for the session and is stale is dropped."""
        job = _Job(session_id, request, on_result, next(self._numbers))
        with self._changed:
            stale = [
                waiting
                for waiting in self._jobs
                if waiting.session_id == session_id and is_stale(waiting.request, request)
            ]
            self._jobs = [waiting for waiting in self._jobs if waiting not in stale]
            self._jobs.append(job)
            self._changed.notify()
        for old in stale:
            old.on_result(dropped(old.request))

    def cancel(self, session_id: str) -> None:
        """Forget the session's waiting requests; one that runs may still answer."""
        with self._changed:
            self._jobs = [job for job in self._jobs if job.session_id != session_id]

    def num_waiting(self) -> int:
        with self._changed:
            return len(self._jobs)

    # ---- threads

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_stopping:
                    self._changed.wait()
                if self._is_stopping:
                    return
                batch = self._take_batch()
                self._num_running += 1
            try:
                self._answer(batch)
            finally:
                with self._changed:
                    self._num_running -= 1

    def _take_batch(self) -> list[_Job]:
        """The most urgent job; while every thread is busy, further partials of like length with it.

        A batch costs less per window than its parts but answers later than any of them, so that it
        pays only where the parts would have to wait anyway.
        """
        self._jobs.sort(key=lambda job: job.priority)
        first = self._jobs.pop(0)
        batch = [first]
        if first.is_partial and self._num_running >= self._num_threads - 1:
            for job in self._jobs[:]:
                if len(batch) < self._decoder.max_batch and job.is_partial and _alike(first, job):
                    self._jobs.remove(job)
                    batch.append(job)
        return batch

    def _answer(self, batch: list[_Job]) -> None:
        first = batch[0].request
        results: list[AsrResult]
        if isinstance(first, DecodeRequest):
            requests = [job.request for job in batch if isinstance(job.request, DecodeRequest)]
            results = list(_decode(self._decoder, requests))
        else:
            results = [_check_turn(self._turn_checker, first)]
        for job, result in zip(batch, results, strict=True):
            try:
                job.on_result(result)
            except Exception:  # e.g. the receiver's event loop is closed already
                logger.exception("a receiver of results failed")


def is_stale(old: AsrRequest, new: AsrRequest) -> bool:
    """Whether nobody waits for `old` any more, now that its session asks for `new`.

    A newer decode tells what a partial would have told, and says that the pause whose sound was in
    question is over. So it does of an older final of the same segment: speech went on, and the
    segment stayed open. A closed segment's text hangs on its decode; later ones start elsewhere.
    """
    if not isinstance(new, DecodeRequest):
        return False
    if not isinstance(old, DecodeRequest) or old.kind == "partial":
        return True
    return (old.utterance, old.start_s) == (new.utterance, new.start_s) or (
        old.utterance < new.utterance  # it was cleared: else its end would have waited
    )


def dropped(request: AsrRequest) -> AsrResult:
    """The answer to a request that was never run."""
    if isinstance(request, DecodeRequest):
        return DecodeResult(request.utterance, request.revision, "", dropped=True)
    return TurnCheckResult(request.utterance, request.revision, None)


def run_inline(
    decoder: Decoder, turn_checker: TurnChecker | None, request: AsrRequest
) -> AsrResult:
    """Answer one request in the caller's thread: the virtual clock's form."""
    if isinstance(request, DecodeRequest):
        return _decode(decoder, [request])[0]
    return _check_turn(turn_checker, request)


def _decode(decoder: Decoder, requests: list[DecodeRequest]) -> list[DecodeResult]:
    try:
        return decoder.decode(requests)
    except Exception as error:  # onnxruntime raises bare exceptions; the other callers are served
        logger.exception("decoding failed")
        reason = str(error) or type(error).__name__
        return [DecodeResult(r.utterance, r.revision, "", error=reason) for r in requests]


def _check_turn(turn_checker: TurnChecker | None, request: TurnCheckRequest) -> TurnCheckResult:
    probability: float | None = None
    if turn_checker is not None:
        try:
            probability = turn_checker.probability(request.samples)
        except Exception:  # onnxruntime raises bare exceptions; the pause is judged without it
            logger.exception("turn check failed")
    return TurnCheckResult(request.utterance, request.revision, probability)


def _alike(first: _Job, other: _Job) -> bool:
    spread = abs(len(first.request.samples) - len(other.request.samples))
    return spread <= MAX_BATCH_SPREAD_SAMPLES
