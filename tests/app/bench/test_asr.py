from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.asr import run

KEYS = {
    "wer_partial",
    "wer_final",
    "wer_full_window",
    "word_delay_p50_ms",
    "revised_share",
    "final_equal_at_pause",
    "eou_delay_p50_ms",
    "eou_delay_mean_ms",
    "cut_off_rate",
    "cpu_s_per_audio_s",
}


@pytest.mark.models
def test_one_clip_gives_every_figure_for_us_and_the_baseline(clips_dir: Path) -> None:
    figures = run([clips_dir / "gasst_whattimeisit.riff"], with_load=False)
    assert figures.keys() >= KEYS
    assert KEYS - {"wer_full_window"} <= figures["baseline"].keys()
    assert figures["clips"] == 1
    assert figures["wer_final"] == figures["baseline"]["wer_final"] == 0.0
    assert figures["final_cpu_share"] < 0.5
    assert figures["cpu_s_per_audio_s"] < figures["baseline"]["cpu_s_per_audio_s"]
