"""The thread that runs the synthesizer: pieces in, PCM chunks out, in order of urgency."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from tts.synthesizer import SynthesisFailed, Synthesizer

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One piece to speak. `key` is unique among the unfinished requests of the worker.

    `is_held` marks the first piece of a draft: pieces of committed replies go first, and a newer
    held piece of the same session replaces an older one.
    """

    key: str
    session_id: str
    text: str
    is_held: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SpeechChunk:
    key: str
    index: int  # 0, 1, 2 … within the piece
    samples: np.ndarray  # [N] float32 mono
    sample_rate_hz: int


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """The end of a request, exactly once. `error` says why where the outcome is "failed"."""

    key: str
    outcome: Literal["spoken", "cancelled", "superseded", "failed"]
    audio_s: float = 0.0
    compute_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SpeechResult:
    """What `run_inline` gives: everything the callbacks would have been told."""

    chunks: tuple[SpeechChunk, ...]
    done: SpeechDone


_Message = TypeVar("_Message", SpeechChunk, SpeechDone, bool)
OnChunk = Callable[[SpeechChunk], None]
OnDone = Callable[[SpeechDone], None]


class SpeechQueueFull(Exception):
    """Too many pieces of committed replies wait; nothing was queued."""

    def __init__(self, max_pending: int) -> None:
        super().__init__(f"{max_pending} pieces already wait to be spoken")


class DuplicateSpeechKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"a request with key {key!r} is not finished yet")


@dataclass(slots=True, eq=False)
class _Job:
    request: SpeechRequest
    on_chunk: OnChunk
    on_done: OnDone
    order: int
    is_held: bool
    stopped_as: Literal["cancelled", "superseded"] | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        return (self.is_held, self.order)


class SpeechWorker:
    """Speaks queued pieces on its own thread. All methods may be called from any thread and never
    wait for speech.

    At most `max_pending` pieces wait. Overflow policy: the oldest held piece goes ("superseded");
    with none, SpeechQueueFull. Callbacks run on the worker's thread and must not block.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        *,
        max_pending: int = 64,
        clock: Callable[[], float] = time.perf_counter,
        on_busy: Callable[[bool], None] = lambda is_busy: None,
    ) -> None:
        self.synthesizer = synthesizer
        self.max_pending = max_pending
        self._clock = clock
        self._on_busy = on_busy  # told, on the worker's thread, when a piece begins and ends
        self._wake = threading.Condition()  # guards all below
        self._waiting: list[_Job] = []
        self._ended: deque[_Job] = (
            deque()
        )  # stopped before they ran; their callers are still to be told
        self._running: _Job | None = None
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Warm the synthesizer up on the worker's thread and begin."""
        assert self._thread is None, "started twice"
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="speech", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what waits or runs is reported as cancelled. Idempotent."""
        with self._wake:
            self._is_stopping = True
            for job in self._waiting:
                self._end(job, "cancelled")
            self._waiting.clear()
            if self._running is not None:
                self._running.stopped_as = "cancelled"
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None

    def submit(self, request: SpeechRequest, on_chunk: OnChunk, on_done: OnDone) -> None:
        """Queue a piece. Raises SpeechQueueFull or DuplicateSpeechKey."""
        with self._wake:
            if self._find(request.key) is not None:
                raise DuplicateSpeechKey(request.key)
            if request.is_held:
                self._supersede_held(request.session_id)
            if len(self._waiting) >= self.max_pending:
                self._drop_oldest_held()
            job = _Job(request, on_chunk, on_done, next(self._order), request.is_held)
            self._waiting.append(job)
            self._wake.notify()

    def promote(self, key: str) -> None:
        """A held piece turned out to be the committed reply's: it no longer waits behind others.
        Unknown keys are fine.
        """
        with self._wake:
            job = self._find(key)
            if job is not None:
                job.is_held = False

    def cancel(self, key: str) -> None:
        """Forget a piece; a running one stops at its next chunk. Unknown and finished keys are
        fine.
        """
        with self._wake:
            job = self._find(key)
            if job is None:
                return
            if job is self._running:
                job.stopped_as = job.stopped_as or "cancelled"
            else:
                self._waiting.remove(job)
                self._end(job, "cancelled")
            self._wake.notify()

    def run_inline(self, request: SpeechRequest) -> SpeechResult:
        """Speak one piece on the caller's thread (virtual clock)."""
        chunks: list[SpeechChunk] = []
        job = _Job(request, chunks.append, lambda done: None, 0, request.is_held)
        return SpeechResult(done=self._speak(job), chunks=tuple(chunks))

    # ---- under the lock

    def _find(self, key: str) -> _Job | None:
        if (
            self._running is not None
            and self._running.request.key == key
            and self._running.stopped_as is None
        ):
            return self._running
        return next((job for job in self._waiting if job.request.key == key), None)

    def _end(self, job: _Job, outcome: Literal["cancelled", "superseded"]) -> None:
        job.stopped_as = outcome
        self._ended.append(job)

    def _supersede_held(self, session_id: str) -> None:
        for job in [j for j in self._waiting if j.is_held and j.request.session_id == session_id]:
            self._waiting.remove(job)
            self._end(job, "superseded")
        running = self._running
        if running is not None and running.is_held and running.request.session_id == session_id:
            running.stopped_as = running.stopped_as or "superseded"

    def _drop_oldest_held(self) -> None:
        oldest = min((j for j in self._waiting if j.is_held), key=lambda j: j.order, default=None)
        if oldest is None:
            raise SpeechQueueFull(self.max_pending)
        self._waiting.remove(oldest)
        self._end(oldest, "superseded")

    # ---- on the worker's thread

    def _run(self) -> None:
        try:
            self.synthesizer.warm_up()
        except Exception:  # a piece that fails the same way is reported to whoever waits for it
            logger.exception("the synthesizer's warm-up failed")
        while True:
            with self._wake:
                while not (self._waiting or self._ended or self._is_stopping):
                    self._wake.wait()
                ended = list(self._ended)
                self._ended.clear()
                job = min(self._waiting, key=lambda j: j.rank, default=None) if not ended else None
                if job is not None:
                    self._waiting.remove(job)
                    self._running = job
                elif not ended:
                    return
            for stopped in ended:
                assert stopped.stopped_as is not None
                self._tell(stopped.on_done, SpeechDone(stopped.request.key, stopped.stopped_as))
            if job is not None:
                self._tell(self._on_busy, True)
                done = self._speak(job)
                with self._wake:
                    self._running = None
                self._tell(self._on_busy, False)
                self._tell(job.on_done, done)

    def _speak(self, job: _Job) -> SpeechDone:
        started_s = self._clock()
        num_samples, error = 0, None
        rate_hz = self.synthesizer.sample_rate_hz
        try:
            for index, samples in enumerate(self.synthesizer.synthesize(job.request.text)):
                if job.stopped_as is not None:
                    break
                num_samples += len(samples)
                self._tell(job.on_chunk, SpeechChunk(job.request.key, index, samples, rate_hz))
        except SynthesisFailed as failure:
            error = str(failure)
        except Exception as bug:  # one piece that cannot be spoken must not silence every session
            logger.exception("a synthesizer raised something else than SynthesisFailed")
            error = type(bug).__name__
        outcome: Literal["spoken", "cancelled", "superseded", "failed"] = job.stopped_as or "spoken"
        if error is not None:
            outcome = "failed"
        return SpeechDone(
            job.request.key, outcome, num_samples / rate_hz, self._clock() - started_s, error
        )

    @staticmethod
    def _tell(callback: Callable[[_Message], None], message: _Message) -> None:
        try:
            callback(message)
        except Exception:  # e.g. the receiver's event loop is closed already
            logger.exception("a receiver of speech failed")
