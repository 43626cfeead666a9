from __future__ import annotations

import numpy as np

from asr.mel import log_mel, mel_filters


def test_a_tone_lights_up_its_own_filter() -> None:
    seconds = np.arange(16_000) / 16_000
    features = log_mel(np.sin(2 * np.pi * 1000 * seconds).astype(np.float32))
    assert features.shape == (80, 100)
    loudest = features[:, 10:90].mean(axis=1).argmax()
    centre_hz = (mel_filters(80)[loudest] * np.fft.rfftfreq(400, 1 / 16_000)).sum() / mel_filters(
        80
    )[loudest].sum()
    assert abs(centre_hz - 1000) < 40


def test_filters_have_equal_area() -> None:
    areas = mel_filters(80)[10:].sum(axis=1)  # the lowest are narrower than a bin
    assert areas.max() / areas.min() < 1.6


def test_the_floor_follows_the_loudest_bin() -> None:
    samples = np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    features = log_mel(samples)
    assert features.min() >= features.max() - 2.0 - 1e-6  # 8 decades, scaled by a quarter


def test_other_models_have_other_filters() -> None:
    assert log_mel(np.zeros(16_000, np.float32), 128).shape == (128, 100)
