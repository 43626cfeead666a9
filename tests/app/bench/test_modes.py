from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.bench import modes
from app.virtual import Costs


@pytest.mark.models
def test_speculation_is_never_later_than_an_early_call_and_that_never_than_none(
    bundled_clips: Path, tmp_path: Path
) -> None:
    table = tmp_path / "costs.json"
    Costs(60, 60, 40, 2, 12, 15).save(table)
    parser = argparse.ArgumentParser()
    modes.add_arguments(parser)
    clip = str(bundled_clips / "gasst_whattimeisit.riff")
    arguments = parser.parse_args(
        [
            clip,
            "--compute",
            str(table),
            "--scale",
            "3",
            "--prompts",
            "assistant",
            "--kind",
            "question",
        ]
    )
    figures = modes.run_command(arguments)
    lag = {row["mode"]: row["ready_lag_p50_ms"] for row in figures["rows"]}
    assert figures["clips"] == 1
    assert lag["on"] <= lag["pause"] <= lag["off"]
    assert lag["off"] > 0
