"""What can go wrong in the engine.

EngineError
├── UnknownSession        no such session, or it was closed
├── StaleRevision         a snapshot's revision does not rise
├── PromptTooLong         more tokens than the engine keeps per session
├── EmptyPrompt           a snapshot without a single token
├── CacheFull             no run of free KV rows is long enough
├── TooManySessions       admission refused
├── BadSessionConfig      a setting of a session that cannot work
└── EngineUnavailable     the circuit breaker is open, or the engine was stopped
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose. `code` is stable, for clients."""

    code = "engine_error"


class UnknownSession(EngineError):
    code = "unknown_session"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no open session {session_id!r}")


class StaleRevision(EngineError):
    code = "stale_revision"

    def __init__(self, revision: int, newest: int) -> None:
        super().__init__(f"revision {revision} does not rise above {newest}")
        self.revision = revision
        self.newest = newest


class PromptTooLong(EngineError):
    code = "prompt_too_long"

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"the prompt has {num_tokens} tokens, the engine takes {max_tokens}")
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class EmptyPrompt(EngineError):
    code = "empty_prompt"

    def __init__(self, revision: int) -> None:
        super().__init__(f"snapshot {revision} holds no tokens")


class CacheFull(EngineError):
    code = "cache_full"

    def __init__(self, num_rows: int, num_free: int) -> None:
        super().__init__(f"no run of {num_rows} KV rows is free ({num_free} are in all)")
        self.num_rows = num_rows
        self.num_free = num_free


class TooManySessions(EngineError):
    code = "too_many_sessions"

    def __init__(self, max_sessions: int) -> None:
        super().__init__(f"{max_sessions} sessions are open, which is the limit")


class BadSessionConfig(EngineError):
    code = "bad_session_config"

    def __init__(self, name: str, value: object, wanted: str) -> None:
        super().__init__(f"{name} is {value!r}; it must be {wanted}")
        self.name = name


class EngineUnavailable(EngineError):
    code = "engine_unavailable"

    def __init__(self, why: str) -> None:
        super().__init__(why)
