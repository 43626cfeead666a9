from __future__ import annotations

from pathlib import Path

import numpy as np

from asr.audio import read_file
from asr.vad import WINDOW_SAMPLES, SileroVad


def probabilities(vad: SileroVad, samples: np.ndarray) -> list[float]:
    starts = range(0, len(samples) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES)
    return [vad.probability(samples[i : i + WINDOW_SAMPLES]) for i in starts]


def test_speech_scores_high_and_silence_low(clips_dir: Path) -> None:
    spoken = probabilities(SileroVad(), read_file(clips_dir / "gasst_whattimeisit.riff"))
    quiet = probabilities(SileroVad(), np.zeros(32_000, np.float32))
    assert np.mean(np.array(spoken) > 0.5) > 0.5
    assert max(quiet) < 0.2


def test_streams_do_not_share_state_and_reset_forgets(clips_dir: Path) -> None:
    samples = read_file(clips_dir / "gasst_whattimeisit.riff")
    alone = probabilities(SileroVad(), samples)
    one, other = SileroVad(), SileroVad()
    mixed = []
    for start in range(0, len(samples) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
        mixed.append(one.probability(samples[start : start + WINDOW_SAMPLES]))
        other.probability(np.random.default_rng(start).random(WINDOW_SAMPLES, np.float32))
    assert mixed == alone
    other.reset()
    assert probabilities(other, samples) == alone


def test_the_window_is_left_as_it_was() -> None:
    window = np.ones(WINDOW_SAMPLES, np.float32)
    SileroVad().probability(window)
    assert (window == 1).all()
