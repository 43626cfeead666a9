"""One turn's timestamps → the latencies people feel. Fed by events only; it reads no clock.

All times are seconds on the session's clock, whose zero is the stream's first sample.
endpoint delay = EOU − speech end · ready lag = first audio available − EOU (0 if there before) ·
response delay = first audio sent − speech end · lead time = EOU − when the first token was decided.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from llm_engine.events import TurnStats

READY_LAG_BOUND_MS = 20.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Configured prices per million tokens; None: no cost is reported."""

    prompt: float | None = None
    cached_prompt: float | None = None
    reply: float | None = None

    def cost(self, stats: TurnStats) -> float | None:
        """What the turn cost: uncached and cached prompt tokens, and every reply token computed."""
        if self.prompt is None and self.cached_prompt is None and self.reply is None:
            return None
        uncached = max(0, stats.prompt_tokens - stats.cached_prompt_tokens)
        computed = stats.reply_tokens + stats.wasted_tokens
        return (
            uncached * (self.prompt or 0.0)
            + stats.cached_prompt_tokens * (self.cached_prompt or 0.0)
            + computed * (self.reply or 0.0)
        ) / 1e6


@dataclass(slots=True)
class Timeline:
    """Timestamps of one turn, filled in as things happen."""

    speech_end_s: float | None = None
    eou_s: float | None = None
    decided_at_s: list[float] = field(default_factory=list)  # of each delivered reply token
    delivered_at_s: list[float] = field(default_factory=list)  # one per delta after EOU
    first_audio_ready_s: float | None = None
    first_audio_sent_s: float | None = None
    num_delivered_tokens: int = 0

    def move_clock(self, by_s: float) -> None:
        """The session's clock was set anew: what happened before keeps its distance to now."""
        for name in ("speech_end_s", "eou_s", "first_audio_ready_s", "first_audio_sent_s"):
            at_s = getattr(self, name)
            if at_s is not None:
                setattr(self, name, at_s + by_s)
        self.decided_at_s = [at_s + by_s for at_s in self.decided_at_s]
        self.delivered_at_s = [at_s + by_s for at_s in self.delivered_at_s]

    def on_delta(self, num_tokens: int, decided_at_s: tuple[float, ...], now_s: float) -> None:
        self.num_delivered_tokens += num_tokens
        self.decided_at_s.extend(decided_at_s)
        self.delivered_at_s.append(now_s)

    def on_first_audio(self, made_s: float | None, now_s: float) -> None:
        """The first chunk leaves. It was ready once it was made and its words were decided: what is
        spoken ahead of a draft may be there long before the draft is verified."""
        if made_s is not None:
            self.first_audio_ready_s = max([made_s, *self.decided_at_s])
        self.first_audio_sent_s = now_s

    def metrics(self, stats: TurnStats, prices: Prices) -> dict[str, Any]:
        """The keys of replay's JSON lines that a session knows; None where not applicable."""
        ready_lag_ms = self._since(self.eou_s, self.first_audio_ready_s, floor=True)
        return {
            "reply_tie_index": stats.tie_index,
            "speech_end_s": _rounded(self.speech_end_s),
            "eou_s": _rounded(self.eou_s),
            "endpoint_delay_ms": self._since(self.speech_end_s, self.eou_s),
            "ready_lag_ms": ready_lag_ms,
            "ready_at_eou": None if ready_lag_ms is None else ready_lag_ms <= READY_LAG_BOUND_MS,
            "response_delay_ms": self._since(self.speech_end_s, self.first_audio_sent_s),
            "ttft_ms": self._since(self.eou_s, next(iter(self.delivered_at_s), None), floor=True),
            "itl_ms": self._inter_token_ms(),
            "lead_time_ms": self._since(self._first_decided_s, self.eou_s, floor=True),
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "wasted_tokens": stats.wasted_tokens,
            "verify_passes": stats.verify_passes,
            "cost": prices.cost(stats),
            "reply_tokens": stats.reply_tokens,
            "num_passes": stats.num_passes,
            "passes_after_commit": stats.passes_after_commit,
            "tokens_after_commit": stats.tokens_after_commit,
            "prompt_tokens": stats.prompt_tokens,
            "cached_prompt_tokens": stats.cached_prompt_tokens,
            "computed_tokens": stats.computed_tokens,
            "snapshots": [asdict(work) for work in stats.snapshots],
        }

    @property
    def _first_decided_s(self) -> float | None:
        return self.decided_at_s[0] if self.decided_at_s else None

    def _inter_token_ms(self) -> float | None:
        """Mean time between tokens after EOU; None for replies of one delivery or less."""
        late = self.num_delivered_tokens - 1
        if late < 1 or len(self.delivered_at_s) < 2:
            return None
        return _rounded((self.delivered_at_s[-1] - self.delivered_at_s[0]) * 1000 / late)

    @staticmethod
    def _since(start_s: float | None, end_s: float | None, *, floor: bool = False) -> float | None:
        if start_s is None or end_s is None:
            return None
        elapsed_ms = (end_s - start_s) * 1000
        return _rounded(max(0.0, elapsed_ms) if floor else elapsed_ms)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
