"""Who runs in the next step, and how many tokens each may bring. No tensors, no rows.

Committed work goes first: replies being decoded, then prompts and drafts being checked, in the
order they were committed. Speculation fills a step of its own only when nobody waits, in chunks
short enough that a commit never waits long; beside committed work it rides along only where the
cost model says that it is next to free (a pass that is bound by reading weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from llm_engine.engine_config import EngineConfig

RIDE_ALONG_SHARE = 0.05  # how much longer speculation may make a committed step
ALONE_FACTOR = 3  # how much longer a step of drafts may be while no other session is open


class WorkClass(IntEnum):
    """In order of precedence."""

    COMMITTED_DECODE = 0
    COMMITTED_PREFILL = 1
    PAUSE_DRAFT = 2  # on a snapshot made at a pause: the likely final one
    DRAFT = 3
    SCORE = 4  # only the end probability is wanted; kept apart, because baselines do not pay for it

    @property
    def is_committed(self) -> bool:
        return self <= WorkClass.COMMITTED_PREFILL


@dataclass(frozen=True, slots=True)
class Work:
    """One session's wish for the next step. `order` breaks ties: smaller goes first."""

    session_id: str
    work_class: WorkClass
    num_tokens: int
    order: float
    prefix_key: int | None = None  # set while a shared prefix is still to be filled: one at a time


@dataclass(frozen=True, slots=True)
class Grant:
    session_id: str
    num_tokens: int


class CostModel:
    """seconds(step) = fixed + per_token * tokens, fitted to measured steps with fading memory.

    Steps of duration 0 (a virtual clock) teach nothing, so plans there are reproducible.
    """

    FADE = 0.98

    def __init__(self, fixed_s: float = 0.008, per_token_s: float = 0.001) -> None:
        self._count = self._x = self._y = self._xx = self._xy = 0.0
        for num_tokens in (1, 33):  # the prior: two imagined steps
            self.add(num_tokens, fixed_s + per_token_s * num_tokens)

    def add(self, num_tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        fade = self.FADE
        self._count = self._count * fade + 1
        self._x = self._x * fade + num_tokens
        self._y = self._y * fade + seconds
        self._xx = self._xx * fade + num_tokens * num_tokens
        self._xy = self._xy * fade + num_tokens * seconds

    @property
    def per_token_s(self) -> float:
        spread = self._xx - self._x * self._x / self._count
        if spread < 1e-9:
            return 0.0
        return max(0.0, (self._xy - self._x * self._y / self._count) / spread)

    @property
    def fixed_s(self) -> float:
        return max(0.0, (self._y - self.per_token_s * self._x) / self._count)

    def seconds(self, num_tokens: int) -> float:
        return self.fixed_s + self.per_token_s * num_tokens

    @property
    def token_cost(self) -> float:
        """What one more token adds to a pass, in passes of one token."""
        return self.per_token_s / self.seconds(1) if self.seconds(1) > 0 else 0.0

    def tokens_within(self, seconds: float) -> int:
        """The most tokens a step of that length holds; many where tokens cost nothing."""
        left = seconds - self.fixed_s
        if left <= 0:
            return 0
        return int(left / self.per_token_s) if self.per_token_s > 1e-9 else 1_000_000


class Scheduler:
    """See the module's head."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.cost = CostModel()

    def _speculative_tokens(self, first: Work, is_alone: bool) -> int:
        """Tokens of a step that holds only speculation, `first` at its head.

        A commit must not wait long for it. But a session that is alone commits nothing else: at
        a pause its commit needs the very rows that are computed, and one pass costs least.
        """
        if is_alone and first.work_class is WorkClass.PAUSE_DRAFT:
            return self._config.max_step_tokens
        limit_s = self._config.max_speculative_step_s
        within = self.cost.tokens_within(ALONE_FACTOR * limit_s if is_alone else limit_s)
        return max(self._config.min_speculative_step_tokens, within)

    def plan(self, works: Sequence[Work], num_sessions: int) -> list[Grant]:
        """Grants for one step; empty if there is nothing to do."""
        ordered = sorted(works, key=lambda work: (work.work_class, work.order))
        committed = [work for work in ordered if work.work_class.is_committed]
        rest = ordered[len(committed) :]
        filling: set[int] = set()
        if not committed:
            if not rest:
                return []
            budget = self._speculative_tokens(rest[0], num_sessions == 1)
            # scoring for a baseline shares no step with what is accounted
            is_score = rest[0].work_class is WorkClass.SCORE
            alike = [work for work in rest if (work.work_class is WorkClass.SCORE) == is_score]
            return _fill(alike, budget, filling)
        grants = _fill(committed, self._config.max_step_tokens, filling)
        num_tokens = sum(grant.num_tokens for grant in grants)
        drafts = [work for work in rest if work.work_class is not WorkClass.SCORE]
        slack_s = RIDE_ALONG_SHARE * self.cost.seconds(num_tokens)
        if self.cost.per_token_s > 0:
            grants += _fill(drafts, int(slack_s / self.cost.per_token_s), filling)
        return grants


def _fill(works: Sequence[Work], budget: int, filling: set[int]) -> list[Grant]:
    """Give each in turn what it asks for until the budget is used up."""
    grants: list[Grant] = []
    for work in works:
        if budget <= 0:
            break
        if work.prefix_key is not None:
            if work.prefix_key in filling:
                continue
            filling.add(work.prefix_key)
        num_tokens = min(work.num_tokens, budget)
        grants.append(Grant(work.session_id, num_tokens))
        budget -= num_tokens
    return grants
