"""What can go wrong outside this program, as typed errors of the app.

ForespeakError
├── AddressUnavailable       the port is taken, or the host is not this machine's
├── BadConfig                settings of the environment or the command line that cannot be
├── CostTableInvalid         a cost table for `replay --compute` that cannot be read
├── NoRecordingChosen        a choice of recordings that leaves none
├── OutputFolderMissing      a file to be written in a folder that does not exist
├── PromptFileInvalid        a prompt file that cannot be read or says something unknown
├── RecordingNotFound        a path given to replay that holds no recording
├── SessionError             a client asked its session for something it cannot have
│   ├── ItemNotFound         a conversation item that does not exist
│   ├── ItemRejected         an item that cannot be added
│   ├── PromptRejected       a conversation that the model's chat template does not take
│   ├── PromptTooLarge       instructions that leave no room for a conversation
│   ├── SessionLimitReached  as many sessions as configured are open already
│   └── SettingsRefused      settings that the reply engine does not take now
└── ModelError
    ├── UnknownModel         an id that is in no table and is no path
    ├── ModelNotFound        a path that holds no model of the wanted kind
    ├── ModelNotPulled       a model of the table that is not in the cache
    ├── IndexUnreachable     a package index or hub gave no answer
    ├── PackageUnavailable   the index answered, but has no such package, version or file
    ├── ClientMissing        the client program of an index is not installed
    ├── HashMismatch         a file is not the one the table pins
    ├── DiskFull             the cache's disk has no room
    └── CacheUnusable        the cache cannot be written for another reason

asr, llm_engine, kernels and tts have errors of their own; none imports this file. `python -m app`
prints any of them as one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class ForespeakError(Exception):
    """Base of the app's typed errors; the message names the offending value."""


class AddressUnavailable(ForespeakError):
    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}; --port chooses another")
        self.host = host
        self.port = port


class BadConfig(ForespeakError):
    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class NoRecordingChosen(ForespeakError):
    def __init__(self, num_found: int) -> None:
        super().__init__(f"none of {num_found} recordings has that kind and language")
        self.num_found = num_found


class OutputFolderMissing(ForespeakError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"cannot write {path}: its folder does not exist")
        self.path = path


class CostTableInvalid(ForespeakError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cost table {str(path)!r}: {reason}")


class PromptFileInvalid(ForespeakError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"prompt file {str(path)!r}: {reason}")


class RecordingNotFound(ForespeakError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"no recording at {str(path)!r}: give an audio file, a folder, a manifest")


class SessionError(ForespeakError):
    """Sent to the client whose request it was; `code` is the wire's name for it."""

    code = "invalid_request"


class ItemNotFound(SessionError):
    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"no item {item_id!r} in this conversation")
        self.item_id = item_id


class ItemRejected(SessionError):
    code = "item_rejected"

    def __init__(self, item_id: str, reason: str) -> None:
        super().__init__(f"item {item_id!r}: {reason}")
        self.item_id = item_id


class PromptRejected(SessionError):
    code = "prompt_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the model takes no prompt of this conversation: {reason}")


class PromptTooLarge(SessionError):
    code = "instructions_too_long"

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"the instructions make {num_tokens} tokens, {max_tokens} at most fit")
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class SessionLimitReached(SessionError):
    code = "session_limit_reached"

    def __init__(self, max_sessions: int) -> None:
        super().__init__(f"{max_sessions} sessions are open already, which is the configured limit")
        self.max_sessions = max_sessions


class SettingsRefused(SessionError):
    code = "settings_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the settings stay as they were: {reason}")


class ModelError(ForespeakError):
    """A model cannot be had."""


class UnknownModel(ModelError):
    def __init__(self, name: str, kind: str, known: Iterable[str]) -> None:
        super().__init__(
            f"unknown {kind} {name!r}: neither an id ({', '.join(known)}) nor a path nor a "
            "Hugging Face id (owner/name)"
        )
        self.name = name


class ModelNotFound(ModelError):
    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"no model at {str(path)!r}: {reason}")
        self.path = str(path)


class ModelNotPulled(ModelError):
    def __init__(self, model_id: str, folder: Path) -> None:
        super().__init__(
            f"model {model_id!r} is not in {folder}: run `scripts/run models pull {model_id}`"
        )
        self.model_id = model_id


class IndexUnreachable(ModelError):
    def __init__(self, index: str, wanted: str, reason: str) -> None:
        super().__init__(f"cannot reach {index} for {wanted}: {reason}")
        self.index = index
        self.wanted = wanted


class PackageUnavailable(ModelError):
    def __init__(self, wanted: str, reason: str) -> None:
        super().__init__(f"cannot get {wanted}: {reason}")
        self.wanted = wanted


class ClientMissing(ModelError):
    def __init__(self, client: str, wanted: str) -> None:
        super().__init__(f"{client} is not installed, but {wanted} is fetched with it")
        self.client = client


class HashMismatch(ModelError):
    def __init__(self, file: str, expected: str, found: str) -> None:
        super().__init__(f"{file} has SHA-256 {found}, expected {expected}")
        self.file = file
        self.expected = expected
        self.found = found


class DiskFull(ModelError):
    def __init__(self, folder: Path, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"no room in {folder}: {needed_bytes / 1e6:.0f} MB needed, "
            f"{free_bytes / 1e6:.0f} MB free"
        )
        self.folder = folder
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class CacheUnusable(ModelError):
    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"cannot use the model cache {folder}: {reason}")
        self.folder = folder
