from __future__ import annotations

from asr.settings import ListenerSettings


def test_the_telephone_band_lowers_the_off_threshold() -> None:
    assert ListenerSettings(is_telephone=True).thresholds.off < ListenerSettings().thresholds.off


def test_a_threshold_of_ones_own_keeps_the_hysteresis() -> None:
    thresholds = ListenerSettings(vad_threshold=0.7).thresholds
    assert thresholds.on == 0.7
    assert 0 < thresholds.off < thresholds.on
    assert ListenerSettings(vad_threshold=0.05).thresholds.off > 0
