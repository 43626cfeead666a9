from __future__ import annotations

from pathlib import Path

import pytest

from asr.errors import ModelBroken, ModelNotFound
from asr.onnx import OnnxModel


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.onnx"):
        OnnxModel(tmp_path / "none.onnx")


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelBroken, match=r"broken\.onnx"):
        OnnxModel(path)
