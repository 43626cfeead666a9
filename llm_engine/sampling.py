"""From settings of sessions to rows of a batch: who samples how, with which noise.

Noise is keyed by (session seed, turn number, index of the token in the reply, token id): the same
prompt gives the same reply, however often and in whatever batches it was drafted before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.noise import row_key
from kernels.sample import NO_DRAFT, TOP_P_BITS, TOP_P_OFF, Sampled, SampleParams, sample_and_verify
from llm_engine.events import SamplingParams, TurnId

MIN_TEMPERATURE = 0.01  # below it the best always wins, and scores divided by less may overflow


class BadSamplingParams(ValueError):
    """A sampling setting is outside its range; names the setting and the value."""


class NonFiniteLogits(ArithmeticError):
    """The model's output holds NaN: nothing can be sampled from it."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the logits of row {row} hold NaN")
        self.row = row


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One position to decide: the reply's token number `reply_index` of turn `turn`.

    `preceding` are all tokens before it, prompt included (read where a repetition penalty is set).
    `draft`: the token that the next row was computed behind, None where a run ends.
    """

    params: SamplingParams
    seed: int
    turn: TurnId
    reply_index: int
    preceding: Sequence[int] = ()
    draft: int | None = None


@dataclass(frozen=True, slots=True)
class SampledRow:
    """`is_accepted`: equals its draft, as do all rows of its run before it.

    `tie_margin`: how much the logits may be off before the choice could differ.
    """

    token_id: int
    is_accepted: bool
    margin: float
    tie_margin: float


def check_sampling(params: SamplingParams) -> None:
    """Raise BadSamplingParams for settings outside their ranges."""
    for name, is_good in (
        ("temperature", 0 <= params.temperature < math.inf),
        ("top_k", params.top_k >= 0),
        ("top_p", 0 < params.top_p <= 1),
        ("min_p", 0 <= params.min_p <= 1),
        ("repetition_penalty", 0.1 <= params.repetition_penalty <= 10),
        ("max_tokens", params.max_tokens >= 1),
    ):
        if not is_good:
            raise BadSamplingParams(f"{name} is {getattr(params, name)!r}")


def sample_rows(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledRow]:
    """Decide logits[N, V] float32 by `rows` [N]; rows of one run follow one another.

    Raises NonFiniteLogits.
    """
    draft = torch.tensor(
        [NO_DRAFT if row.draft is None else row.draft for row in rows],
        dtype=torch.int64,
        device=logits.device,
    )
    result = sample_and_verify(logits, draft, row_params(rows, logits.device))
    return _to_rows(result)


def row_params(rows: Sequence[SampleRow], device: torch.device) -> SampleParams:
    """The kernel's view of `rows`."""
    settings = [row.params for row in rows]
    # a penalty of 1 reads no preceding tokens: none are moved to the device
    preceding = [r.preceding if r.params.repetition_penalty != 1 else () for r in rows]
    starts = [0]
    for tokens in preceding:
        starts.append(starts[-1] + len(tokens))
    keys = [row_key(row.seed, row.turn, row.reply_index) for row in rows]
    temperatures = [s.temperature if s.temperature >= MIN_TEMPERATURE else 0.0 for s in settings]
    is_plain = all(s.repetition_penalty == 1 for s in settings)

    def floats(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def integers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return SampleParams(
        is_greedy=is_plain and not any(temperatures),
        temperature=floats(temperatures),
        top_k=integers([s.top_k for s in settings]),
        top_p=integers([_top_p_units(s.top_p) for s in settings]),
        log_min_p=floats([math.log(s.min_p) if s.min_p > 0 else -math.inf for s in settings]),
        penalty=floats([s.repetition_penalty for s in settings]),
        keys=integers([word for key in keys for word in key]).view(-1, 2),
        preceding_ids=integers([token for tokens in preceding for token in tokens]),
        preceding_start=integers(starts),
    )


def _top_p_units(top_p: float) -> int:
    return min(TOP_P_OFF, max(1, round(top_p * (1 << TOP_P_BITS))))


def _to_rows(result: Sampled) -> list[SampledRow]:
    margins, edges = result.margins.tolist(), result.edge_margins.tolist()
    for n, margin in enumerate(margins):
        if math.isnan(margin):
            raise NonFiniteLogits(n)
    return [
        SampledRow(token, accepted, margin, min(margin, edge))
        for token, accepted, margin, edge in zip(
            result.tokens.tolist(), result.accepted.tolist(), margins, edges, strict=True
        )
    ]
