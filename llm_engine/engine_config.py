"""What an engine is given once, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVDtype = Literal["float", "int8"]
MAX_SESSIONS = 32
ROWS_PER_SESSION = 512  # what a conversation of some turns holds, its padding included


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits. Raises ValueError naming the field for values that cannot work.

    For more sessions `num_rows` has to grow along, by ROWS_PER_SESSION each: with fewer rows than
    the open sessions hold, each turn computes again what it lost to another's.
    """

    max_sessions: int = MAX_SESSIONS
    max_sequence_tokens: int = (
        2048  # prompt and reply together, also bound by the model's positions
    )
    min_reply_tokens: int = 64  # room that the longest prompt leaves for its reply
    # of the KV arena; memory is touched only where rows are used
    num_rows: int = MAX_SESSIONS * ROWS_PER_SESSION
    kv_dtype: KVDtype = "float"  # int8: half the memory of 16 bits
    slot_rows: int = 32  # smallest extent of a slot and of a reply; both double
    max_step_tokens: int = 256  # per step of committed work
    max_speculative_step_s: float = 0.020  # a commit waits at most this long for speculation
    min_speculative_step_tokens: int = 8  # progress even where a pass alone takes longer than that
    max_failures_in_a_row: int = 3  # then the circuit breaker opens
    breaker_s: float = 5.0  # and stays open for so long
    tie_bound: float = 1e-3  # scores closer than this may fall either way (float32; see docs)

    def __post_init__(self) -> None:
        for name in ("max_sessions", "num_rows", "slot_rows", "max_step_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.kv_dtype not in ("float", "int8"):
            raise ValueError(f'kv_dtype must be "float" or "int8", got {self.kv_dtype!r}')
        if not 0 < self.min_reply_tokens < self.max_sequence_tokens:
            raise ValueError(
                f"min_reply_tokens must lie in 1..{self.max_sequence_tokens - 1}, "
                f"got {self.min_reply_tokens}"
            )
