"""What a session asks of its workers. Calls only enqueue; answers come back by the session."""

from __future__ import annotations

from typing import Protocol

from asr.events import AsrRequest
from llm_engine.events import OnEvent, SessionConfig
from llm_engine.prompt import Snapshot


class Ears(Protocol):
    """The recogniser's worker; results come back through `Session.on_heard`."""

    def submit(self, request: AsrRequest) -> None: ...


class Mind(Protocol):
    """The reply engine (`llm_engine.engine.Engine`, or another of the same face)."""

    def open(self, config: SessionConfig, on_event: OnEvent) -> str: ...

    def update(self, session_id: str, snapshot: Snapshot) -> None: ...

    def commit(self, session_id: str, snapshot: Snapshot) -> int: ...

    def cancel(self, session_id: str) -> None: ...

    def truncate(self, session_id: str, turn: int, num_reply_tokens: int) -> None: ...

    def hold_reply(self, session_id: str) -> None:
        """Decide no further tokens of the reply until it is released, cancelled or replaced."""

    def release_reply(self, session_id: str) -> None: ...

    def close(self, session_id: str) -> None: ...


class Voice(Protocol):
    """The synthesizer's worker; chunks come back through `Session.on_spoken`, a refusal or failure
    through `Session.on_unspoken`."""

    def submit(self, key: str, text: str, *, held: bool) -> None:
        """Synthesise `text`. A held piece is speculative and goes after all others."""

    def promote(self, key: str) -> None:
        """A held piece is the committed reply's: it waits behind nothing speculative any more."""

    def cancel(self, key: str) -> None:
        """Forget the piece; chunks already on their way are ignored by their key."""
