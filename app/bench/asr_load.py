"""How many callers may speak at once: real time, real threads, windows that grow as speech does."""

from __future__ import annotations

import threading
import time

import numpy as np

from asr.audio import SAMPLE_RATE_HZ, read_file
from asr.events import AsrResult, DecodeRequest, DecodeResult
from asr.whisper import SELF_CHECK_CLIP
from asr.worker import AsrWorker, Decoder, TurnChecker

SHORTEST_S, LONGEST_S = 2.0, 5.0
STEP_S = 0.3
MAX_STEP_S = 0.6
RUN_S = 4.0
COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16)


def streams_realtime(decoder: Decoder, checker: TurnChecker) -> int:
    """The largest number of speaking streams whose partials keep a step of `MAX_STEP_S`."""
    best = 0
    for count in COUNTS:
        if mean_step_s(decoder, checker, count) > MAX_STEP_S:
            break
        best = count
    return best


def mean_step_s(decoder: Decoder, checker: TurnChecker, num_streams: int) -> float:
    """Mean time between answered partials of `num_streams` streams that ask every `STEP_S`."""
    worker = AsrWorker(decoder, checker)
    worker.start()
    streams = [_Stream(worker, f"s{i}") for i in range(num_streams)]
    try:
        until_s = time.perf_counter() + RUN_S
        while time.perf_counter() < until_s:
            for stream in streams:
                stream.ask()
            time.sleep(0.01)
    finally:
        worker.stop()
    return RUN_S * num_streams / max(1, sum(stream.num_answers for stream in streams))


class _Stream:
    """Asks for a partial every `STEP_S`, but only once the last is answered, as a listener does."""

    def __init__(self, worker: AsrWorker, name: str) -> None:
        question = read_file(SELF_CHECK_CLIP)
        self._samples = np.tile(question, 4)[: round(LONGEST_S * SAMPLE_RATE_HZ)]
        self._window_s = SHORTEST_S
        self._text = ""  # of the last answer
        self._worker, self._name = worker, name
        self._lock = threading.Lock()
        self._is_out = False
        self._asked_s = -STEP_S
        self._revision = 0
        self.num_answers = 0

    def ask(self) -> None:
        now_s = time.perf_counter()
        with self._lock:
            if self._is_out or now_s - self._asked_s < STEP_S:
                return
            self._is_out, self._asked_s = True, now_s
        samples = self._samples[: round(self._window_s * SAMPLE_RATE_HZ)]
        request = DecodeRequest(0, self._revision, samples, 0.0, "partial", draft=self._text)
        self._revision += 1
        self._worker.submit(self._name, request, self._answered)

    def _answered(self, result: AsrResult) -> None:
        with self._lock:
            self._is_out = False
            if isinstance(result, DecodeResult) and not result.dropped:
                self.num_answers += 1
                self._grow(result.text)

    def _grow(self, text: str) -> None:
        self._text = text
        self._window_s += STEP_S
        if self._window_s > LONGEST_S:
            self._window_s, self._text = SHORTEST_S, ""
