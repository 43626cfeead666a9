"""Where compiled code is kept."""

from pathlib import Path

import numba

import kernels.cpu_kernels  # noqa: F401  (compiles into the folder)
from kernels.numba_cache import cache_folder


def test_the_folder_is_the_users_and_not_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.is_dir() and folder.parent == tmp_path / "forespeak" / "numba"
    assert not Path(numba.config.CACHE_DIR).is_relative_to(Path(__file__).parents[2])


def test_a_folder_that_cannot_be_made_falls_back_to_the_temporary_one(monkeypatch, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder().parent.parent == tmp_path
