"""Measure what computing costs on this machine → a table for `replay --compute FILE`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from app.recordings import Recording, frames_with_silence, load
from app.replay import settings_for
from app.runtime import Runtime
from app.virtual import Costs, Job, VirtualCall, VirtualClock


def calibrate(runtime: Runtime, clock: VirtualClock, recordings: Sequence[Recording]) -> Costs:
    """Run the recordings with measured costs and fit the table to all jobs done."""
    jobs: list[Job] = []
    for recording in recordings:
        clock.now_s = 0.0
        call = VirtualCall(runtime, clock, settings_for(runtime, "on"), None)
        call.run(frames_with_silence(load(recording)), lambda events: False)
        call.close()
        jobs += call.jobs
    return fit_costs(jobs)


def fit_costs(jobs: Sequence[Job]) -> Costs:
    """Medians per kind of job; steps cost a pass and its further tokens, by least squares."""
    pass_ms, token_ms = _fit_steps([job for job in jobs if job.kind == "step" and job.num_passes])
    speech = [job for job in jobs if job.kind == "speech" and job.audio_s]
    return Costs(
        partial_ms=_median_ms(jobs, "partial"),
        final_ms=_median_ms(jobs, "final"),
        turn_check_ms=_median_ms(jobs, "turn_check"),
        prefill_token_ms=token_ms,
        decode_pass_ms=pass_ms,
        tts_second_ms=_rounded(statistics.median([job.seconds / job.audio_s for job in speech]))
        if speech
        else 0.0,
    )


def _median_ms(jobs: Sequence[Job], kind: str) -> float:
    seconds = [job.seconds for job in jobs if job.kind == kind]
    return _rounded(statistics.median(seconds)) if seconds else 0.0


def _fit_steps(steps: Sequence[Job]) -> tuple[float, float]:
    """ms per pass and per further token: least squares on steps within the 90th percentile."""
    if len(steps) < 2:
        return 0.0, 0.0
    limit_s = float(np.percentile([step.seconds for step in steps], 90))
    kept = [step for step in steps if step.seconds <= limit_s]
    passes = np.array([[step.num_passes, step.num_tokens - step.num_passes] for step in kept])
    seconds = np.array([step.seconds for step in kept])
    (pass_s, token_s), *_ = np.linalg.lstsq(passes.astype(float), seconds, rcond=None)
    return _rounded(max(0.0, float(pass_s))), _rounded(max(0.0, float(token_s)))


def _rounded(seconds: float) -> float:
    return round(seconds * 1000, 3)
