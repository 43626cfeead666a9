"""One clip through a listener on audio time; what was shown when, and the CPU time it took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from app.recordings import Recording, frames_with_silence, load
from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.events import (
    AsrRequest,
    DecodeRequest,
    ListenerEvent,
    Transcript,
    TurnCheckRequest,
    UtteranceEnded,
)
from asr.listener import Listener
from asr.settings import ListenerSettings
from asr.vad import WINDOW_SAMPLES, SileroVad
from asr.worker import Decoder, TurnChecker, run_inline

T = TypeVar("T")


@dataclass(slots=True)
class Observed:
    """What one clip's stream told. Times are audio seconds; CPU times are this thread's own."""

    clip: Recording
    duration_s: float
    speech_s: float
    speech_end_s: float  # offline: end of the last window that is speech
    transcripts: list[Transcript] = field(default_factory=list)
    ends: list[UtteranceEnded] = field(default_factory=list)
    final_samples: list[Samples] = field(default_factory=list)  # of each end's last decode
    partial_cpu_s: float = 0.0
    final_cpu_s: float = 0.0  # of the decodes that made the finals
    pause_cpu_s: float = 0.0  # of all pause decodes
    turn_cpu_s: float = 0.0
    pause_decode_s: dict[float, float] = field(default_factory=dict)  # by end of audio


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """(what `work` returns, CPU seconds it took in all threads)."""
    start_s = time.process_time()
    result = work()
    return result, time.process_time() - start_s


def stream(
    clip: Recording, decoder: Decoder, checker: TurnChecker | None, settings: ListenerSettings
) -> Observed:
    """Raises AudioError for what is not audio."""
    samples = load(clip)
    observed = Observed(clip, len(samples) / SAMPLE_RATE_HZ, *speech_of(samples))
    listener = Listener(settings, SileroVad())
    waiting: deque[AsrRequest] = deque()
    newest_pause: DecodeRequest | None = None
    newest_cpu_s = 0.0

    def take(events: list[ListenerEvent]) -> None:
        for event in events:
            if isinstance(event, DecodeRequest | TurnCheckRequest):
                waiting.append(event)
            elif isinstance(event, Transcript):
                observed.transcripts.append(event)
            elif isinstance(event, UtteranceEnded):
                observed.ends.append(event)
                if newest_pause is not None:
                    observed.final_samples.append(newest_pause.samples)
                    observed.final_cpu_s += newest_cpu_s

    for frame in frames_with_silence(samples):
        take(listener.push(frame))
        while waiting:
            request = waiting.popleft()
            result, cpu_s = timed(partial(run_inline, decoder, checker, _without_words(request)))
            if isinstance(request, DecodeRequest) and request.word_times:
                result = run_inline(decoder, checker, request)  # for the figures only
            if isinstance(request, TurnCheckRequest):
                observed.turn_cpu_s += cpu_s
            elif request.kind == "partial":
                observed.partial_cpu_s += cpu_s
            else:
                observed.pause_cpu_s += cpu_s
                newest_pause, newest_cpu_s = request, cpu_s
                end_s = request.start_s + len(request.samples) / SAMPLE_RATE_HZ
                observed.pause_decode_s[round(end_s, 3)] = cpu_s
            take(listener.on_result(result))
    return observed


def _without_words(request: AsrRequest) -> AsrRequest:
    """What a session asks for: word times are for the figures, so their cost is not counted."""
    if isinstance(request, DecodeRequest) and request.word_times:
        return replace(request, word_times=False)
    return request


def speech_of(samples: Samples) -> tuple[float, float]:
    """(seconds of speech, end of the last speech window), by the VAD over the whole clip."""
    vad = SileroVad()
    starts = range(0, len(samples) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES)
    spoken = [
        start + WINDOW_SAMPLES
        for start in starts
        if vad.probability(samples[start : start + WINDOW_SAMPLES]) >= 0.5
    ]
    window_s = WINDOW_SAMPLES / SAMPLE_RATE_HZ
    return len(spoken) * window_s, (spoken[-1] / SAMPLE_RATE_HZ if spoken else 0.0)
