from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from asr.ct2_weights import ELEMENT_TYPES, float_matrix, read_weights
from asr.errors import ModelBroken


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def model_file(variables: dict[str, np.ndarray], version: int = 6) -> bytes:
    parts = [struct.pack("<I", version), text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, values in variables.items():
        parts += [text(name), struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)]
        kind = [np.dtype(known) for known in ELEMENT_TYPES].index(values.dtype)
        parts += [struct.pack("<BI", kind, values.nbytes), values.tobytes()]
    return b"".join(parts)


def test_variables_of_every_type_and_shape_are_read(tmp_path: Path) -> None:
    variables = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "number": np.array(7, dtype=np.int16),
        "rounded": np.array([[10, -20], [127, 0]], dtype=np.int8),
        "rounded_scale": np.array([10.0, 127.0], dtype=np.float32),
    }
    path = tmp_path / "model.bin"
    path.write_bytes(model_file(variables))
    read = read_weights(path)
    assert read.keys() == variables.keys()
    assert all(np.array_equal(read[name], values) for name, values in variables.items())
    assert float_matrix(read, "half").dtype == np.float32
    assert np.allclose(float_matrix(read, "rounded"), [[1, -2], [1, 0]])


@pytest.mark.parametrize("damage", ["version", "cut", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    whole = model_file({"x": np.zeros(100, dtype=np.float32)}, 6 if damage != "version" else 5)
    path = tmp_path / "model.bin"
    path.write_bytes({"version": whole, "cut": whole[:-1], "empty": b""}[damage])
    with pytest.raises(ModelBroken, match=r"model\.bin"):
        read_weights(path)
