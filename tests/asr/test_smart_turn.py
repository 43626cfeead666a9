from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asr.audio import read_file
from asr.errors import ModelNotFound
from asr.smart_turn import SmartTurn


@pytest.mark.models
def test_a_whole_question_sounds_more_complete_than_its_half(
    smart_turn_path: Path, clips_dir: Path
) -> None:
    smart_turn = SmartTurn(smart_turn_path)
    question = read_file(clips_dir / "riva_en-US_sample.wav")
    whole = smart_turn.probability(question)
    half = smart_turn.probability(question[: len(question) // 2])
    assert half < whole
    assert whole > 0.5


@pytest.mark.models
def test_only_the_last_eight_seconds_count(smart_turn_path: Path) -> None:
    smart_turn = SmartTurn(smart_turn_path)
    recent = np.random.default_rng(0).standard_normal(8 * 16_000).astype(np.float32)
    earlier = np.ones(16_000, np.float32)
    assert smart_turn.probability(recent) == smart_turn.probability(
        np.concatenate([earlier, recent])
    )


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        SmartTurn(tmp_path / "none.onnx")
