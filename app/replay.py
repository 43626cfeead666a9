"""Recordings through the real pipeline, in real time or on the virtual clock → figures per turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jiwer
import numpy as np
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from app import messages as m
from app.live import LiveRuntime, default_settings
from app.recordings import FRAME_SAMPLES, Recording, frames_with_silence, load, speech_window_ends_s
from app.runtime import Runtime
from app.session_settings import SessionSettings
from app.virtual import Costs, Stamped, VirtualCall, VirtualClock
from asr.audio import SAMPLE_RATE_HZ
from llm_engine.events import SpeculationTrigger, SuffixPolicy

Speculation = Literal["on", "off", "pause"]
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE_HZ
REPLY_TIMEOUT_S = 60.0
LAG_KEYS = [
    "eou_s",
    "endpoint_delay_ms",
    "ready_lag_ms",
    "ready_at_eou",
    "response_delay_ms",
    "ttft_ms",
    "itl_ms",
    "lead_time_ms",
]


def settings_for(
    runtime: Runtime,
    speculation: Speculation,
    suffix_policy: SuffixPolicy = SuffixPolicy.RECOMPUTE,
) -> SessionSettings:
    """The session settings of a mode; `suffix_policy` is what is committed under.

    A recorded caller does not wait for the reply, so replies are not interrupted; and all modes end
    turns with the same evidence: they differ in what was computed ahead and in nothing else.
    """
    settings = replace(default_settings(runtime), interrupt_response=False)
    if speculation == "on":
        return replace(settings, engine=replace(settings.engine, suffix_policy=suffix_policy))
    trigger = SpeculationTrigger.OFF if speculation == "off" else SpeculationTrigger.PAUSE
    engine = replace(settings.engine, trigger=trigger, keep_drafts=False)
    is_ahead = speculation == "pause"
    return replace(settings, engine=engine, compute_ahead=is_ahead, speak_ahead=is_ahead)


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One clip's turns (JSON lines, in order), its events, and the caller's audio."""

    recording: Recording
    turns: tuple[dict[str, Any], ...]
    events: tuple[Stamped, ...]
    samples: np.ndarray


def replay_virtual(
    runtime: Runtime,
    clock: VirtualClock,
    recording: Recording,
    speculation: Speculation,
    costs: Costs | None,
    suffix_policy: SuffixPolicy = SuffixPolicy.RECOMPUTE,
) -> ReplayedCall:
    """One clip on the virtual clock. `costs` None: computing takes what it takes here."""
    samples = load(recording)
    clock.now_s = 0.0
    call = VirtualCall(runtime, clock, settings_for(runtime, speculation, suffix_policy), costs)
    num_frames = len(samples) // FRAME_SAMPLES
    watch = _OpenTurns()
    try:
        call.run(
            frames_with_silence(samples),
            lambda events: clock.now_s / FRAME_S > num_frames and watch.is_quiet(events),
        )
    finally:
        call.close()
    hides_lags = costs is not None and costs == Costs()
    return _finished(recording, speculation, call.events, samples, hides_lags=hides_lags)


async def replay_live(
    live: LiveRuntime, recording: Recording, speculation: Speculation
) -> ReplayedCall:
    """One clip in real time through the worker threads, as a caller would send it."""
    samples = load(recording)
    session = live.open_session(settings=settings_for(live.runtime, speculation))
    events: list[Stamped] = []
    came = asyncio.Event()

    async def collect() -> None:
        async for event in session.events():
            events.append(Stamped(session.now_s, event))
            came.set()

    collector = asyncio.create_task(collect(), name="replay-collect")
    watch = _OpenTurns()
    try:
        started_s = time.perf_counter()
        for index, frame in enumerate(frames_with_silence(samples)):
            due_s = started_s + (index + 1) * FRAME_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await session.send(m.AudioReceived(frame))
            if index * FRAME_SAMPLES >= len(samples) and watch.is_quiet(events):
                break
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            while not watch.is_answered(events):
                came.clear()
                await came.wait()
    finally:
        await session.close()
        await collector
    return _finished(recording, speculation, events, samples, hides_lags=False)


class _OpenTurns:
    """Reads off a call's events whether a turn is still open. Looks at each event once."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._is_speaking = False
        self._num_unanswered = 0

    def is_quiet(self, events: Sequence[Stamped]) -> bool:
        """No utterance is open: the call may end once its replies have come."""
        self._look(events)
        return not self._is_speaking

    def is_answered(self, events: Sequence[Stamped]) -> bool:
        self._look(events)
        return self._num_unanswered == 0

    def _look(self, events: Sequence[Stamped]) -> None:
        for stamped in events[self._num_seen :]:
            match stamped.event:
                case m.UserSpeechStarted():
                    self._is_speaking = True
                case m.TranscriptFinal(text=text):
                    self._is_speaking = False
                    self._num_unanswered += bool(text)
                case m.TurnMeasured():
                    self._num_unanswered -= 1
        self._num_seen = len(events)


def _finished(
    recording: Recording,
    speculation: Speculation,
    events: Sequence[Stamped],
    samples: np.ndarray,
    *,
    hides_lags: bool,
) -> ReplayedCall:
    speech_ends_s = speech_window_ends_s(samples)
    measured = [stamped.event for stamped in events if isinstance(stamped.event, m.TurnMeasured)]
    turns: list[dict[str, Any]] = []
    for number, event in enumerate(measured):
        metrics = _with_offline_speech_end(event.metrics, speech_ends_s)
        if hides_lags:
            metrics |= dict.fromkeys(LAG_KEYS)
        turns.append({"clip": recording.name, "turn": number, "mode": speculation, **metrics})
    for turn in turns:
        turn["wer"] = None
    if turns:
        turns[-1]["wer"] = word_error_rate(
            recording, " ".join(turn["transcript"] for turn in turns)
        )
    return ReplayedCall(recording, tuple(turns), tuple(events), samples)


def _with_offline_speech_end(metrics: dict[str, Any], speech_ends_s: np.ndarray) -> dict[str, Any]:
    """Replace the session's idea of where speech ended by the offline one."""
    eou_s = metrics["eou_s"]
    before = speech_ends_s[speech_ends_s <= eou_s] if eou_s is not None else speech_ends_s[:0]
    if not len(before):
        return dict(metrics)
    speech_end_s = round(float(before[-1]), 3)
    moved_ms = (metrics["speech_end_s"] - speech_end_s) * 1000
    changed: dict[str, float | None] = {"speech_end_s": speech_end_s}
    for key in ("endpoint_delay_ms", "response_delay_ms"):
        value = metrics[key]
        changed[key] = None if value is None else round(value + moved_ms, 3)
    return metrics | changed


def word_error_rate(recording: Recording, transcript: str) -> float | None:
    """WER of a clip's joined turns after Whisper's own normaliser; None without a reference."""
    if recording.reference is None:
        return None
    normalise: Callable[[str], str] = (
        EnglishTextNormalizer() if recording.language == "en" else BasicTextNormalizer()
    )
    reference = normalise(recording.reference)
    return round(float(jiwer.wer(reference, normalise(transcript))), 4) if reference else None
