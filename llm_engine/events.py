"""What a session asks for and what the engine answers: small frozen messages.

Events are delivered by `on_event` on the engine's thread (or inside `Engine.step()` when the engine
is driven inline); the receiver hops to its own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

SessionId = str
TurnId = int


class SuffixPolicy(StrEnum):
    """What becomes of K/V rows that follow an edit (docs/engine.md has the measured trade-offs)."""

    RECOMPUTE = "recompute"  # recomputed in place; exact
    ROTATE = "rotate"  # K re-rotated by the position shift, V reused; not exact
    PADDED = "padded"  # reused as is, positions of the slot's padding stay reserved; not exact


class SpeculationTrigger(StrEnum):
    """Which snapshots are drafted on."""

    PARTIAL = "partial"  # every snapshot
    # those whose stable words changed (Snapshot.num_stable_changes) and those at a pause; of the
    # others the rows are computed and no tokens
    STABLE = "stable"
    PAUSE = "pause"  # only snapshots made at a pause
    OFF = "off"  # none: nothing is computed before commit


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How reply tokens are chosen. `temperature` 0 is greedy; the session's seed keys the noise."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 160


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Fixed at `Engine.open`.

    `draft_policy` is used for drafts on snapshots that are not at a pause, `suffix_policy` for what
    is delivered. `cache_scope` bounds prefix sharing: sessions of different scopes share nothing.
    """

    seed: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    suffix_policy: SuffixPolicy = SuffixPolicy.RECOMPUTE
    draft_policy: SuffixPolicy = SuffixPolicy.RECOMPUTE
    max_draft_tokens: int = 48
    # Stop drafting until commit once the first sentence and the one token after it exist: a
    # sentence splitter needs what follows ("Dr.", "3.") before it lets the sentence go.
    draft_first_sentence: bool = True
    stop: tuple[str, ...] = ()
    cache_scope: str = ""
    trigger: SpeculationTrigger = SpeculationTrigger.PARTIAL
    use_ngram_pool: bool = False  # docs/log.md has what it gained: too little to be on
    # Score snapshots that are not drafted on too (baselines end turns alike). Rows computed for
    # that alone are dropped before accounted work begins; its steps are marked as not charged.
    score_snapshots: bool = True
    max_turn_draft_tokens: int = (
        400  # speculation budget of a turn; drafts at a pause may exceed it
    )
    keep_drafts: bool = (
        True  # False: a draft is reused only whole, for an equal prompt (pause-only baseline)
    )


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """What one snapshot of a turn left to do. Kept, reused and redone add up to `prompt_tokens`."""

    revision: int
    prompt_tokens: int
    kept_tokens: int  # their rows stay exactly right
    reused_tokens: int  # behind the change: rows taken over under an inexact policy
    redone_tokens: int  # to be computed
    draft_tokens: int  # decided for an earlier snapshot, to be verified against this one


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Accounting of one turn. Times are the engine clock's seconds; None: did not happen."""

    drafted_tokens: int = 0  # tokens computed for snapshots that were not final
    accepted_tokens: int = 0  # of those, delivered
    wasted_tokens: int = 0  # of those, thrown away
    reply_tokens: int = 0
    # forward passes that held tokens of this turn, speculative ones and those given up included
    num_passes: int = 0
    verify_passes: int = 0  # of those, passes that verified draft or proposed tokens
    passes_after_commit: int = 0
    tokens_after_commit: int = 0  # reply tokens decided after commit
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  # of the final prompt, not computed after commit
    # every token position run through the model in this turn; a pass given up counts whole
    computed_tokens: int = 0
    committed_at_s: float | None = None
    first_token_at_s: float | None = (
        None  # when the first delivered token was decided; before commit for drafts
    )
    finished_at_s: float | None = None
    tie_index: int | None = None  # first reply token chosen within the tie bound of the runner-up
    snapshots: tuple[SnapshotWork, ...] = ()  # the newest `accounts.MAX_SNAPSHOTS`, oldest first


@dataclass(frozen=True, slots=True)
class SnapshotScored:
    """P(the caller's message ends here), read from the logits after the slot's last word."""

    session_id: SessionId
    revision: int
    end_probability: float


@dataclass(frozen=True, slots=True)
class DraftChanged:
    """Draft text from `keep_tokens` on is replaced by `token_ids`; `text` is the whole draft's.

    `is_complete`: the draft reached the reply's own end (end of message, stop string, max_tokens).
    """

    session_id: SessionId
    revision: int
    keep_tokens: int
    token_ids: tuple[int, ...]
    text: str
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """Committed reply tokens: never retracted, gapless (`first_index` = tokens delivered before).

    `decided_at_s[i]` is the engine clock's time when token i was decided (lead time = commit - it).
    """

    session_id: SessionId
    turn: TurnId
    first_index: int
    token_ids: tuple[int, ...]
    text: str
    decided_at_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """The reply's end. `error` says what went wrong when `reason` is "error"."""

    session_id: SessionId
    turn: TurnId
    reason: Literal["stop", "length", "cancelled", "error"]
    stats: TurnStats
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """A command could not be carried out (StaleRevision, PromptTooLong …); the session goes on."""

    session_id: SessionId
    code: str
    message: str


EngineEvent = SnapshotScored | DraftChanged | ReplyDelta | ReplyDone | SessionFailed
OnEvent = Callable[[EngineEvent], None]
