"""Scripted stand-ins: the level of the audio is its speech probability, its content its words."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.events import (
    AsrRequest,
    AsrResult,
    DecodeRequest,
    DecodeResult,
    ListenerEvent,
    Transcript,
    TurnCheckRequest,
    TurnCheckResult,
    UtteranceEnded,
)
from asr.listener import Listener
from asr.settings import ListenerSettings
from asr.worker import dropped, is_stale

WORD_SAMPLES = 4096  # eight windows


class LevelVad:
    """A window's mean level is its speech probability."""

    def probability(self, window: Samples) -> float:
        return float(np.abs(window).mean())

    def reset(self) -> None:
        pass


def level(value: float, duration_s: float) -> Samples:
    return np.full(round(duration_s * SAMPLE_RATE_HZ), value, dtype=np.float32)


def speech(duration_s: float, seed: int = 0) -> Samples:
    """Loud audio whose words depend on `seed`."""
    noise = np.random.default_rng(seed).uniform(0.8, 1.0, round(duration_s * SAMPLE_RATE_HZ))
    return noise.astype(np.float32)


def silence(duration_s: float) -> Samples:
    return level(0.05, duration_s)


def words_in(samples: Samples) -> str:
    """One word per `WORD_SAMPLES` of loud audio, spelled by a checksum of exactly these samples."""
    loud = samples[samples > 0.5]
    blocks = [loud[i : i + WORD_SAMPLES] for i in range(0, len(loud), WORD_SAMPLES)]
    return " ".join(f"w{zlib.crc32(block.tobytes()):08x}" for block in blocks)


def decode(request: DecodeRequest) -> DecodeResult:
    return DecodeResult(request.utterance, request.revision, words_in(request.samples))


@dataclass
class Caller:
    """A listener with its workers on a virtual clock: audio time is the only time.

    `delay_s` says when a request is answered, None never.
    """

    settings: ListenerSettings = field(default_factory=ListenerSettings)
    answer: Callable[[DecodeRequest], DecodeResult] = decode
    turn_probability: Callable[[TurnCheckRequest], float | None] = lambda request: 0.99
    delay_s: Callable[[AsrRequest], float | None] = lambda request: 0.0
    drops_stale: bool = False

    def __post_init__(self) -> None:
        self.listener = Listener(self.settings, LevelVad())
        self.events: list[ListenerEvent] = []
        self.requests: list[AsrRequest] = []
        self._due: list[tuple[float, int, AsrResult]] = []

    def says(self, *pieces: Samples, chunk_samples: int | Iterable[int] = 320) -> Caller:
        """Push the audio in chunks of the given size or sizes."""
        audio = np.concatenate(pieces)
        sizes = iter([chunk_samples]) if isinstance(chunk_samples, int) else iter(chunk_samples)
        size = 320
        start = 0
        while start < len(audio):
            size = next(sizes, size)
            self.take(self.listener.push(audio[start : start + size]))
            start += size
            self._deliver()
        return self

    def hangs_up(self) -> Caller:
        """No more audio; everything that is out is answered."""
        self.take(self.listener.finish())
        while self._due:
            self._due.sort(key=lambda item: item[:2])
            self.take(self.listener.on_result(self._due.pop(0)[2]))
        return self

    def take(self, events: Sequence[ListenerEvent]) -> None:
        for event in events:
            if isinstance(event, DecodeRequest | TurnCheckRequest):
                self._ask(event)
            else:
                self.events.append(event)

    def _ask(self, request: AsrRequest) -> None:
        self.requests.append(request)
        delay_s = self.delay_s(request)
        if delay_s is None:
            return
        result: AsrResult
        if isinstance(request, DecodeRequest):
            result = self.answer(request)
        else:
            probability = self.turn_probability(request)
            result = TurnCheckResult(request.utterance, request.revision, probability)
        self._drop_stale(request)
        self._due.append((self.listener.now_s + delay_s, len(self.requests), result))

    def _drop_stale(self, request: AsrRequest) -> None:
        """As the worker does, to requests that run already, too: it would have, had they waited."""
        for number, (_, order, _) in enumerate(self._due):
            old = self.requests[order - 1]
            if self.drops_stale and is_stale(old, request):
                self._due[number] = (self.listener.now_s, order, dropped(old))

    def _deliver(self) -> None:
        while True:
            ready = [item for item in self._due if item[0] <= self.listener.now_s]
            if not ready:
                return
            first = min(ready, key=lambda item: item[:2])
            self._due.remove(first)
            self.take(self.listener.on_result(first[2]))

    # ---- what was heard

    @property
    def ends(self) -> list[UtteranceEnded]:
        return [event for event in self.events if isinstance(event, UtteranceEnded)]

    @property
    def transcripts(self) -> list[Transcript]:
        return [event for event in self.events if isinstance(event, Transcript)]

    @property
    def finals(self) -> list[str | None]:
        return [end.transcript.text if end.transcript else None for end in self.ends]
