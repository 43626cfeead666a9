"""What one turn cost and what of it was used."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from llm_engine.drafts import Draft
from llm_engine.events import SnapshotWork, TurnStats

MAX_SNAPSHOTS = 64  # remembered per turn: a caller who talks for an hour does not fill memory


@dataclass(slots=True)
class TurnAccount:
    """Counts while a turn runs, from its first snapshot to its reply's end."""

    drafted_tokens: int = 0
    num_passes: int = 0
    verify_passes: int = 0
    passes_after_commit: int = 0
    tokens_after_commit: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    committed_at_s: float | None = None
    snapshots: deque[SnapshotWork] = field(default_factory=lambda: deque(maxlen=MAX_SNAPSHOTS))

    def commit(self, at_s: float, num_prompt: int, num_missing: int) -> None:
        """The prompt is final; `num_missing` of its tokens are still to be computed."""
        self.committed_at_s = at_s
        self.prompt_tokens = num_prompt
        self.cached_prompt_tokens = num_prompt - num_missing

    def count_pass(self, num_tokens: int, *, is_verify: bool) -> None:
        self.num_passes += 1
        self.verify_passes += is_verify
        self.computed_tokens += num_tokens
        self.passes_after_commit += self.committed_at_s is not None

    def count_decided(self, num_new: int, num_kept: int) -> None:
        """`num_new` tokens were decided by this pass, `num_kept` drafted earlier were confirmed."""
        if self.committed_at_s is None:
            self.drafted_tokens += num_new
        else:
            self.tokens_after_commit += num_new + num_kept

    def stats(self, reply: Draft, num_delivered: int, now_s: float) -> TurnStats:
        accepted = sum(reply.is_early[:num_delivered])
        return TurnStats(
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=accepted,
            wasted_tokens=max(0, self.drafted_tokens - accepted),
            reply_tokens=num_delivered,
            num_passes=self.num_passes,
            verify_passes=self.verify_passes,
            passes_after_commit=self.passes_after_commit,
            tokens_after_commit=self.tokens_after_commit,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            computed_tokens=self.computed_tokens,
            committed_at_s=self.committed_at_s,
            first_token_at_s=reply.decided_at_s[0] if num_delivered else None,
            finished_at_s=now_s,
            tie_index=reply.tie_index,
            snapshots=tuple(self.snapshots),
        )
