"""Logits → tokens: penalty, temperature, top-k, top-p, min-p, Gumbel-max, verification of drafts.

Each step is specified to the bit, so that every device picks the same token from the same logits.
All floats are float32 and each operation is rounded once, to nearest:

1. penalty: a token among the row's preceding ones has l / penalty where l > 0, else l * penalty.
2. temperature 0: the best l, ties to the lower id. Otherwise x = l / temperature (a true division).
3. truncation, each as a threshold on x, so that equal scores stay together:
   top-k keeps x >= the k-th largest; top-p keeps x while the mass of strictly larger x among those
   is below floor(total * top_p), masses being integer `weights(x - best)`; min-p keeps
   x >= best + ln(min_p). The best is always kept.
4. the largest x + gumbel(token id, row key), ties to the lower id.

Legend: N rows, V tokens, P preceding tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.noise import GUMBEL_MAX, ZERO_WEIGHT_BELOW, Floats, gumbel, may_reach, weights
from kernels.sample_kernel import choose_and_accept

TOP_P_BITS = 20  # top_p is in units of 2^-20
TOP_P_OFF = 1 << TOP_P_BITS
NO_DRAFT = -1
_NUM_NEAR = 64  # tokens that noise is drawn for first: the best ones


@dataclass(frozen=True, slots=True)
class SampleParams:
    """One row's settings each, all on the logits' device.

    `is_greedy`: every row has temperature 0 and penalty 1, so that nothing else is read.
    """

    is_greedy: bool
    temperature: torch.Tensor  # [N] float32
    top_k: torch.Tensor  # [N] int64, 0: off
    top_p: torch.Tensor  # [N] int64 in units of 2^-20, TOP_P_OFF: off
    log_min_p: torch.Tensor  # [N] float32, -inf: off
    penalty: torch.Tensor  # [N] float32, 1: off
    keys: torch.Tensor  # [N, 2] int64, `noise.row_key`
    preceding_ids: torch.Tensor  # [P] int64, repeats allowed
    preceding_start: torch.Tensor  # [N+1] int64, row n's are preceding_ids[start[n]:start[n+1]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """`margins` and `edge_margins` are distances in logits: how much the logits may be off before
    another token could win (best to second noised score), or a truncation could cut elsewhere."""

    tokens: torch.Tensor  # [N] int64
    margins: torch.Tensor  # [N] float32
    edge_margins: torch.Tensor  # [N] float32, inf without truncation
    accepted: torch.Tensor  # [N] bool: the draft token, and all before it in its run, hold


def sample_and_verify_reference(
    logits: torch.Tensor, draft: torch.Tensor, params: SampleParams
) -> Sampled:
    """Torch reference (numpy inside: a call costs less, and sums of int64 are exact)."""
    scores: Floats = logits.cpu().numpy()
    rows = [_pick_greedy(row) for row in scores] if params.is_greedy else _pick(scores, params)
    picked = np.array(rows, dtype=np.float64).reshape(-1, 3)
    tokens = torch.from_numpy(picked[:, 0].astype(np.int64))
    margins = torch.from_numpy(picked[:, 1:].astype(np.float32))
    accepted = _accepted(tokens.tolist(), draft.tolist())
    device = logits.device
    return Sampled(
        tokens.to(device),
        margins[:, 0].to(device),
        margins[:, 1].to(device),
        torch.tensor(accepted, dtype=torch.bool, device=device),
    )


def _accepted(tokens: list[int], draft: list[int]) -> list[bool]:
    """A row without a draft token ends a run; behind a wrong one nothing of its run holds."""
    accepted = []
    holds = True
    for token, drafted in zip(tokens, draft, strict=True):
        holds = holds and token == drafted
        accepted.append(holds)
        if drafted == NO_DRAFT:
            holds = True
    return accepted


def _pick_greedy(row: Floats) -> tuple[int, float, float]:
    best = int(row.argmax())
    others = [part.max() for part in (row[:best], row[best + 1 :]) if part.size]
    second = max(others, default=np.float32(-np.inf))
    return best, float(row[best] - second), float("inf")


def _pick(scores: Floats, params: SampleParams) -> list[tuple[int, float, float]]:
    temperature = params.temperature.cpu().numpy()
    top_k, top_p = params.top_k.tolist(), params.top_p.tolist()
    log_min_p, penalty = params.log_min_p.cpu().numpy(), params.penalty.cpu().numpy()
    keys = params.keys.tolist()
    preceding, start = params.preceding_ids.cpu().numpy(), params.preceding_start.tolist()
    rows = []
    for n, row in enumerate(scores):
        penalised = _penalise(row, penalty[n], preceding[start[n] : start[n + 1]])
        if temperature[n] == 0:
            rows.append(_pick_greedy(penalised))
            continue
        with np.errstate(over="ignore"):  # told by the margin
            x = penalised / temperature[n]
        if not np.isfinite(x.max()):
            rows.append((int(x.argmax()), float("nan"), float("nan")))
            continue
        cut, edge = _truncate(x, top_k[n], top_p[n], log_min_p[n])
        token, margin = _pick_noised(x, cut, (keys[n][0], keys[n][1]))
        scale = float(temperature[n])
        rows.append((token, margin * scale, edge * scale))
    return rows


def _penalise(row: Floats, penalty: np.float32, preceding: npt.NDArray[np.int64]) -> Floats:
    if penalty == 1 or not preceding.size:
        return row
    penalised = row.copy()
    seen = row[preceding]
    penalised[preceding] = np.where(seen > 0, seen / penalty, seen * penalty)
    return penalised


def _truncate(x: Floats, top_k: int, top_p: int, log_min_p: np.float32) -> tuple[np.float32, float]:
    """Smallest x that is kept, and how far from another outcome that is, in units of x."""
    best = x.max()
    cut, edge = np.float32(-np.inf), float("inf")
    if 0 < top_k < x.size:
        cut = np.partition(x, x.size - top_k)[x.size - top_k]
        edge = min(edge, float(cut - x[x < cut].max(initial=np.float32(-np.inf))))
        if np.count_nonzero(x >= cut) > top_k:
            edge = 0.0  # equal scores have the last place
    if top_p < TOP_P_OFF:
        nucleus, distance = _nucleus(x, best, cut, top_p)
        cut, edge = max(cut, nucleus), min(edge, distance)
    if log_min_p > -np.inf:
        least = best + log_min_p
        others = np.delete(x, x.argmax())  # the best moves the border along
        edge = min(edge, float(np.abs(others - least).min(initial=np.inf)))
        cut = max(cut, least)
    return min(cut, best), edge


def _nucleus(x: Floats, best: np.float32, cut: np.float32, top_p: int) -> tuple[np.float32, float]:
    """top-p's threshold among the tokens with x >= cut, and its distance to another outcome.

    Logits that are off by e shift a token set's share of the mass by less than e / 2.
    """
    ordered = -np.sort(-x[x >= max(cut, best + ZERO_WEIGHT_BELOW)])
    mass = np.cumsum(weights(ordered - best))
    total = int(mass[-1])
    limit = total * top_p >> TOP_P_BITS
    before = np.concatenate(([0], mass[:-1]))  # mass of what precedes, equals included
    num_kept = max(1, int(np.searchsorted(before, limit)))
    threshold = ordered[num_kept - 1]
    above = int(np.searchsorted(-ordered, -threshold, side="left"))
    below = int(np.searchsorted(-ordered, -threshold, side="right"))
    distance = min(limit - int(before[above]), total - limit) / total
    if below - 1 > above and before[below - 1] >= limit:
        distance = 0.0  # of equal scores the last is kept only for being equal
    if below < ordered.size:
        gap = float(threshold - ordered[below])
        distance = min(distance, (int(before[below]) - limit) / total, gap / 2)
    return threshold, 2 * distance


def _pick_noised(x: Floats, cut: np.float32, key: tuple[int, int]) -> tuple[int, float]:
    """The kept token with the largest noised score, and its lead over the second.

    The best tokens are noised first. One further down counts only if its noise lifts it to the
    second of those, which rules nearly all out; noise is bounded, which rules out the rest.
    """
    kept = np.flatnonzero(x >= cut)
    near = np.partition(x[kept], -_NUM_NEAR)[-_NUM_NEAR] if kept.size > _NUM_NEAR else cut
    ids = kept[x[kept] >= near]
    noised = x[ids] + gumbel(ids, key)
    if ids.size < kept.size:
        bar = np.partition(noised, -2)[-2]
        far = kept[(x[kept] < near) & (x[kept] >= bar - GUMBEL_MAX)]
        far = may_reach(far, key, float(bar - near))
        ids = np.concatenate((ids, far))
        noised = np.concatenate((noised, x[far] + gumbel(far, key)))
    best = noised.max()
    token = int(ids[noised == best].min())
    others = noised[ids != token]
    return token, float(best - others.max(initial=-np.inf))


def sample_and_verify(logits: torch.Tensor, draft: torch.Tensor, params: SampleParams) -> Sampled:
    """Choose a token for each row of logits[N, V] float32, and compare with draft[N] int64.

    `draft[n]` is the token that row n+1 was computed behind (a draft or proposal); NO_DRAFT marks
    the last row of each run. Rows behind a token that was not accepted are to be thrown away.
    A row holding NaN has a margin that is not a number; so has a sampled row whose best score is
    infinite.

    Raises:
        KernelArgumentError: shapes or dtypes differ from these.
    """
    require(
        logits.dim() == 2 and logits.dtype == torch.float32 and logits.shape[1] > 0,
        f"logits must be [N, V] float32, got {tuple(logits.shape)} {logits.dtype}",
    )
    num_rows = logits.shape[0]
    require(
        draft.shape == (num_rows,) and draft.dtype == torch.int64,
        f"draft must be [{num_rows}] int64, got {tuple(draft.shape)} {draft.dtype}",
    )
    shapes = {"keys": (num_rows, 2), "preceding_start": (num_rows + 1,)}
    for name in ("temperature", "top_k", "top_p", "log_min_p", "penalty", *shapes):
        shape = tuple(getattr(params, name).shape)
        wanted = shapes.get(name, (num_rows,))
        require(shape == wanted, f"{name} must be {wanted} for {num_rows} rows, got {shape}")
    if backend_for(logits) == "torch":
        return sample_and_verify_reference(logits, draft, params)
    tokens, margins, edge_margins, accepted = choose_and_accept(
        logits,
        draft,
        params.is_greedy,
        params.temperature,
        params.top_k,
        params.top_p,
        params.log_min_p,
        params.penalty,
        params.keys,
        params.preceding_ids,
        params.preceding_start,
    )
    return Sampled(tokens, margins, edge_margins, accepted)
