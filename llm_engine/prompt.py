"""Prompts as the engine sees them: segments of token ids, frozen into numbered snapshots.

A *segment* is a piece of the prompt with its own token list; a *snapshot* is the whole prompt at
one moment, with a revision that rises strictly within a session. Both are immutable, so that any
thread may hold one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SegmentRole = Literal["prefix", "history", "slot", "suffix"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a prompt.

    `prefix` may be shared between sessions of one cache scope, `history` holds one earlier message,
    `slot` holds words that are still changing, `suffix` follows the slot (passages, header).
    """

    name: str
    role: SegmentRole
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable prompt. `at_pause` marks the likely final one: exact work starts there.

    `max_reply_tokens` (>= 1) bounds a reply committed with it, besides the session's own limit.
    `num_stable_changes` counts how often the words that are likely to stay have changed so far: a
    count and no flag, because a snapshot may be replaced by a newer one before it is worked on.
    """

    revision: int
    segments: tuple[Segment, ...]
    at_pause: bool = False
    max_reply_tokens: int | None = None
    num_stable_changes: int = 0

    def __post_init__(self) -> None:
        if self.max_reply_tokens is not None and self.max_reply_tokens < 1:
            raise ValueError(f"max_reply_tokens must be at least 1, not {self.max_reply_tokens}")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids of the prompt in order."""
        return tuple(token for segment in self.segments for token in segment.token_ids)

    @property
    def num_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)
