from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.asr_stream import speech_of, stream, timed
from app.recordings import Recording
from asr.audio import read_file
from asr.settings import ListenerSettings
from tests.asr.scripted import decode


class ByContent:
    max_batch = 1

    def decode(self, requests):
        return [decode(request) for request in requests]


def test_a_clip_streams_to_its_end_and_is_accounted(clips_dir: Path) -> None:
    clip = Recording(clips_dir / "gasst_whattimeisit.riff", "question", "en", "what time is it")
    observed = stream(clip, ByContent(), None, ListenerSettings(use_smart_turn=False))
    assert len(observed.ends) == 1
    assert len(observed.final_samples) == 1
    assert observed.ends[0].at_s > observed.speech_end_s > 1.0
    assert 0.5 < observed.speech_s < observed.duration_s
    assert observed.partial_cpu_s > 0
    assert observed.pause_cpu_s >= observed.final_cpu_s > 0
    assert observed.turn_cpu_s == 0


def test_speech_is_measured_over_the_whole_clip(clips_dir: Path) -> None:
    speech_s, end_s = speech_of(read_file(clips_dir / "gasst_whattimeisit.riff"))
    assert 0.5 < speech_s < end_s < 1.57


def test_timing_counts_cpu_time() -> None:
    result, seconds = timed(lambda: sum(range(200_000)))
    assert result == pytest.approx(200_000 * 199_999 / 2)
    assert 0 < seconds < 5
