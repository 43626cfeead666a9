from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from asr.kept_table import KeptTable

TABLE = np.arange(24, dtype=np.float32).reshape(1, 6, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    return folder


def test_a_table_is_found_again_for_the_same_model_only(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "derived"
    kept = KeptTable.of(model, "int8", folder)
    assert kept.load() is None
    kept.save(TABLE)
    found = KeptTable.of(model, "int8", folder).load()
    assert found is not None and np.array_equal(found, TABLE)
    assert KeptTable.of(model, "float32", folder).load() is None
    (model / "model.bin").write_bytes(b"other weights")
    assert KeptTable.of(model, "int8", folder).load() is None
    assert [path.name for path in folder.iterdir()] == [kept.path.name]  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_made_anew(model: Path, tmp_path: Path, content: bytes) -> None:
    kept = KeptTable.of(model, "int8", tmp_path)
    assert kept.path is not None
    kept.path.write_bytes(content)
    assert kept.load() is None
    kept.save(TABLE)
    assert np.array_equal(kept.load(), TABLE)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_to_is_no_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = KeptTable.of(model, "int8", tmp_path / "file" / "derived")
    kept.save(TABLE)
    assert kept.load() is None


def test_without_a_folder_or_a_model_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    for kept in (KeptTable.of(model, "int8", None), KeptTable.of(tmp_path, "int8", tmp_path)):
        kept.save(TABLE)
        assert kept.load() is None
    assert not any(name.endswith(".npy") for name in os.listdir(tmp_path))
