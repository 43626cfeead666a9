"""The Triton side of `sample.py`, and of the noise and weights of `noise.py`, bit for bit.

Logits stay on the device. A row is walked by one program, block by block: thresholds of top-k and
top-p are found by narrowing an interval of float bit patterns, which needs no sort and is exact,
because what is summed are integers. Nothing is fused, every division is rounded to nearest.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import launch, wait_for_inputs
from kernels.noise import (
    EXPONENT_LIMIT,
    LOG2E_SCALED,
    PHILOX_MULTIPLIER,
    PHILOX_WEYL,
    ZERO_WEIGHT_BELOW,
    gumbel_table,
    weight_table,
)

_MULTIPLIER = tl.constexpr(int(PHILOX_MULTIPLIER))
_WEYL = tl.constexpr(int(PHILOX_WEYL))
_LOG2E = tl.constexpr(float(LOG2E_SCALED))
_LIMIT = tl.constexpr(float(EXPONENT_LIMIT))
_WEIGHTLESS = tl.constexpr(float(ZERO_WEIGHT_BELOW))
_GUMBEL_CELLS = tl.constexpr(gumbel_table().shape[1])
_WEIGHT_CELLS = tl.constexpr(weight_table().shape[1])
_SHARES = tl.constexpr(8)  # parts that an interval of keys is cut into per walk over the row
_LOWEST_KEY = tl.constexpr(-2139095041)  # `_ordered` of -inf
_TOP_P_BITS = tl.constexpr(20)
_TOP_P_OFF = tl.constexpr(1 << 20)

BLOCK = 1024


@cache
def device_tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`gumbel_table` and `weight_table` as int32 on `device`, made once."""
    tables = (torch.from_numpy(table) for table in (gumbel_table(), weight_table()))
    gumbel_cells, weight_cells = (table.to(device, torch.int32) for table in tables)
    return gumbel_cells, weight_cells


@triton.jit
def gumbel_noise(token, key_first, key_second, table_ptr):
    """`noise.gumbel` of token ids (int64) at one reply position."""
    first = token.to(tl.uint64)
    second = tl.zeros_like(first) + key_second.to(tl.uint64)
    key = key_first.to(tl.uint64)
    for _ in tl.static_range(10):
        product = first * _MULTIPLIER
        first = (product >> 32) ^ key ^ second
        second = product & 0xFFFFFFFF
        key = (key + _WEYL) & 0xFFFFFFFF
    word = first.to(tl.int64)
    is_upper = word >> 31
    distance = 2 * tl.where(is_upper == 1, 0xFFFFFFFF - word, word) + 1
    # its 24 leading bits are exact in float32, whose exponent field is then the distance's
    leading = tl.where(distance >= 16777216, distance & 0xFFFFFF00, distance).to(tl.float32)
    exponent = ((leading.to(tl.int32, bitcast=True) >> 23) - 127).to(tl.int64)
    mantissa = ((distance << 32) >> (exponent + 15)) & 0x1FFFF
    cell = ((is_upper * 32 + exponent) << 7) + (mantissa >> 10)
    start = tl.load(table_ptr + cell).to(tl.int64)
    step = tl.load(table_ptr + _GUMBEL_CELLS + cell).to(tl.int64)
    units = start + ((step * (mantissa & 1023)) >> 10)
    return units.to(tl.float32) * 0.000003814697265625  # 2^-18


@triton.jit
def softmax_weights(below_best, table_ptr):
    """`noise.weights` of float32 <= 0; int64."""
    scaled = tl.minimum(-below_best * _LOG2E, _LIMIT).to(tl.int64)
    cell = (scaled >> 10) & 1023
    start = tl.load(table_ptr + cell).to(tl.int64)
    step = tl.load(table_ptr + _WEIGHT_CELLS + cell).to(tl.int64)
    mass = start + ((step * (scaled & 1023)) >> 10)
    return mass >> (scaled >> 20)


@triton.jit
def _ordered(x):
    """int32 keys that compare as the floats do; the two zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_ordered(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _scale_kernel(
    logits_ptr, temperature_ptr, x_ptr, vocab, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    """Grid (N, blocks of V): logits over the row's temperature; 0 leaves them as they are."""
    wait_for_inputs(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = token < vocab
    temperature = tl.load(temperature_ptr + row)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    logits = tl.load(logits_ptr + row * vocab + token, mask=exists, other=0.0)
    divisors = tl.full((BLOCK,), 1.0, tl.float32) * divisor
    tl.store(x_ptr + row * vocab + token, tl.div_rn(logits, divisors), mask=exists)


@triton.jit
def _penalise_kernel(
    logits_ptr,
    temperature_ptr,
    penalty_ptr,
    preceding_ptr,
    preceding_start_ptr,
    x_ptr,
    vocab,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (N): overwrite x of the row's preceding tokens. A repeat writes the same value again."""
    wait_for_inputs(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    penalty = tl.load(penalty_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    last = tl.load(preceding_start_ptr + row + 1)
    for start in range(tl.load(preceding_start_ptr + row), last, BLOCK):
        index = start + tl.arange(0, BLOCK)
        token = tl.load(preceding_ptr + index, mask=index < last, other=0)
        logits = tl.load(logits_ptr + row * vocab + token, mask=index < last, other=0.0)
        ones = tl.full((BLOCK,), 1.0, tl.float32)
        lowered = tl.where(logits > 0.0, tl.div_rn(logits, ones * penalty), logits * penalty)
        x = tl.div_rn(lowered, ones * divisor)
        tl.store(x_ptr + row * vocab + token, x, mask=index < last)


@triton.jit
def _top_two(
    x_ptr, vocab, cut, key_first, key_second, table_ptr, NOISED: tl.constexpr, BLOCK: tl.constexpr
):
    """(token, its score, the second score, whether a NaN was met); ties to the lower id."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    second = tl.full((BLOCK,), float("-inf"), tl.float32)
    holder = tl.full((BLOCK,), 0, tl.int32) + vocab
    num_nan = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + lane
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        num_nan += (x != x).to(tl.int32)
        if NOISED:
            kept = (token < vocab) & (x >= cut)
            # most blocks hold nothing that truncation left, and draw no noise
            if tl.max(kept.to(tl.int32), 0) > 0:
                noise = gumbel_noise(token.to(tl.int64), key_first, key_second, table_ptr)
                x = tl.where(kept, x + noise, float("-inf"))
            else:
                x = tl.full((BLOCK,), float("-inf"), tl.float32)
        is_better = x > best
        second = tl.where(is_better, best, tl.maximum(second, x))
        holder = tl.where(is_better, token, holder)
        best = tl.where(is_better, x, best)
    top = tl.max(best, 0)
    winner = tl.min(tl.where(best == top, holder, vocab), 0)
    runner_up = tl.max(tl.where(holder == winner, second, best), 0)
    return tl.minimum(winner, vocab - 1), top, runner_up, tl.max(num_nan, 0) > 0


@triton.jit
def _lowest_cut(
    x_ptr, vocab, best, lowest, limit, table_ptr, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """The lowest score whose strictly larger tokens weigh less than `limit`; not below `lowest`.

    A token weighs 1 where IS_COUNT, else its softmax weight.
    """
    part = tl.arange(0, _SHARES)
    low = lowest.to(tl.int64)
    high = _ordered(best).to(tl.int64)
    while low < high:
        step = (high - low) // _SHARES + 1
        border = tl.minimum(low + part * step, high)
        above = tl.zeros((_SHARES,), tl.int64)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
            key = _ordered(x).to(tl.int64)
            if IS_COUNT:
                weight = (token < vocab).to(tl.int64)
            else:
                weight = tl.where(key >= lowest, softmax_weights(x - best, table_ptr), 0)
            above += tl.sum(tl.where(key[:, None] > border[None, :], weight[:, None], 0), 0)
        low = tl.max(tl.where(above >= limit, border + 1, low), 0)
        high = tl.min(tl.where(above < limit, border, high), 0)
    return _from_ordered(low)


@triton.jit
def _nucleus(x_ptr, vocab, best, cut, top_p, table_ptr, BLOCK: tl.constexpr):
    """top-p's threshold among the tokens from `cut` on, and its distance to another outcome."""
    floor = tl.maximum(cut, best + _WEIGHTLESS)
    total = _mass_above(x_ptr, vocab, best, floor, float("-inf"), table_ptr, BLOCK)
    limit = (total * top_p) >> _TOP_P_BITS
    threshold = _lowest_cut(
        x_ptr, vocab, best, _ordered(floor), tl.maximum(limit, 1), table_ptr, False, BLOCK
    )
    above = _mass_above(x_ptr, vocab, best, floor, threshold, table_ptr, BLOCK)
    next_lower = float("-inf")
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        lower = tl.where((x >= floor) & (x < threshold), x, float("-inf"))
        next_lower = tl.maximum(next_lower, tl.max(lower, 0))
    distance = tl.minimum(limit - above, total - limit).to(tl.float32) / total.to(tl.float32)
    reached = total - _mass_below(x_ptr, vocab, best, floor, threshold, table_ptr, BLOCK)
    before_last = reached - softmax_weights(threshold - best, table_ptr)
    # of equal scores the last may be kept only for being equal
    is_shared = (before_last >= limit) & (before_last > above)
    distance = tl.where(is_shared, 0.0, distance)
    if next_lower > float("-inf"):
        beyond = (reached - limit).to(tl.float32) / total.to(tl.float32)
        distance = tl.minimum(distance, tl.minimum(beyond, (threshold - next_lower) / 2))
    return threshold, 2 * distance


@triton.jit
def _mass_above(x_ptr, vocab, best, floor, threshold, table_ptr, BLOCK: tl.constexpr):
    """Weight of the tokens from `floor` on that lie strictly above `threshold`."""
    mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        weight = softmax_weights(x - best, table_ptr)
        mass += tl.where((x >= floor) & (x > threshold), weight, 0)
    return tl.sum(mass, 0)


@triton.jit
def _mass_below(x_ptr, vocab, best, floor, threshold, table_ptr, BLOCK: tl.constexpr):
    """Weight of the tokens from `floor` on that lie strictly below `threshold`."""
    mass = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        weight = softmax_weights(x - best, table_ptr)
        mass += tl.where((x >= floor) & (x < threshold), weight, 0)
    return tl.sum(mass, 0)


@triton.jit
def _num_from(x_ptr, vocab, cut, BLOCK: tl.constexpr):
    """How many scores are `cut` or better."""
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        count += ((token < vocab) & (x >= cut)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _distance_to(x_ptr, vocab, border, skipped, BELOW: tl.constexpr, BLOCK: tl.constexpr):
    """Distance from `border` to the nearest score but the `skipped` token's, or to the nearest
    below it."""
    nearest = tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < vocab, other=float("-inf"))
        away = border - x if BELOW else tl.abs(border - x)
        counts = (token < vocab) & (x < border if BELOW else token != skipped)
        nearest = tl.where(counts, tl.minimum(nearest, away), nearest)
    return tl.min(nearest, 0)


@triton.jit
def _choose_kernel(
    x_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    log_min_p_ptr,
    keys_ptr,
    gumbel_table_ptr,
    weight_table_ptr,
    tokens_ptr,
    margins_ptr,
    edge_margins_ptr,
    vocab,
    IS_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (N): the steps 2 to 4 of `sample.py`."""
    wait_for_inputs(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * vocab
    no_cut = float("-inf")
    token, best, second, has_nan = _top_two(x_ptr, vocab, no_cut, 0, 0, x_ptr, False, BLOCK)
    margin = best - second
    edge = float("inf")
    if not IS_GREEDY:
        temperature = tl.load(temperature_ptr + row)
        if temperature != 0.0:
            cut = float("-inf")
            top_k = tl.load(top_k_ptr + row)
            if (top_k > 0) & (top_k < vocab):
                lowest = tl.full((), _LOWEST_KEY, tl.int64)
                cut = _lowest_cut(x_ptr, vocab, best, lowest, top_k, weight_table_ptr, True, BLOCK)
                edge = _distance_to(x_ptr, vocab, cut, -1, True, BLOCK)
                is_shared = _num_from(x_ptr, vocab, cut, BLOCK) > top_k
                edge = tl.where(is_shared, 0.0, edge)  # equal scores have the last place
            top_p = tl.load(top_p_ptr + row)
            if top_p < _TOP_P_OFF:
                nucleus, distance = _nucleus(
                    x_ptr, vocab, best, cut, top_p, weight_table_ptr, BLOCK
                )
                cut = tl.maximum(cut, nucleus)
                edge = tl.minimum(edge, distance)
            log_min_p = tl.load(log_min_p_ptr + row)
            if log_min_p > float("-inf"):
                least = best + log_min_p
                away = _distance_to(x_ptr, vocab, least, token, False, BLOCK)
                edge = tl.minimum(edge, away)  # the best moves the border along
                cut = tl.maximum(cut, least)
            cut = tl.minimum(cut, best)
            key_first = tl.load(keys_ptr + 2 * row)
            key_second = tl.load(keys_ptr + 2 * row + 1)
            token, noised, second, _ = _top_two(
                x_ptr, vocab, cut, key_first, key_second, gumbel_table_ptr, True, BLOCK
            )
            margin = (noised - second) * temperature
            edge *= temperature
            has_nan |= tl.abs(best) == float("inf")
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(margins_ptr + row, tl.where(has_nan, float("nan"), margin))
    tl.store(edge_margins_ptr + row, edge)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["num_rows"])
def _accept_kernel(
    tokens_ptr,
    draft_ptr,
    accepted_ptr,
    num_rows,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (1): a row holds while no row of its run, up to itself, picked another than its draft.

    A run ends at a row without a draft. `missed` counts misses from the first row on; what it was
    before a row's run began is the largest such value so far, for the count never falls.
    """
    wait_for_inputs(OVERLAP)
    row = tl.arange(0, BLOCK)
    exists = row < num_rows
    drafted = tl.load(draft_ptr + row, mask=exists, other=0)
    misses = (exists & (tl.load(tokens_ptr + row, mask=exists, other=0) != drafted)).to(tl.int32)
    begins = (row == 0) | (tl.load(draft_ptr + row - 1, mask=exists & (row > 0), other=0) < 0)
    missed = tl.cumsum(misses, 0)
    before_run = tl.associative_scan(tl.where(begins, missed - misses, 0), 0, _larger)
    tl.store(accepted_ptr + row, missed == before_run, mask=exists)


def choose_and_accept(
    logits: torch.Tensor,
    draft: torch.Tensor,
    is_greedy: bool,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    log_min_p: torch.Tensor,
    penalty: torch.Tensor,
    keys: torch.Tensor,
    preceding_ids: torch.Tensor,
    preceding_start: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The fields of `sample.Sampled` in their order; arguments as in `sample.SampleParams`."""
    num_rows, vocab = logits.shape
    device = logits.device
    logits = logits.contiguous()
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    margins, edge_margins = torch.empty(2, num_rows, device=device)
    accepted = torch.empty(num_rows, dtype=torch.bool, device=device)
    x = logits
    if not is_greedy:
        x = torch.empty_like(logits)
        grid = (num_rows, triton.cdiv(vocab, BLOCK))
        launch(
            _scale_kernel,
            grid,
            logits,
            temperature,
            x,
            vocab,
            BLOCK=BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
        if preceding_ids.numel():
            launch(
                _penalise_kernel,
                (num_rows,),
                logits,
                temperature,
                penalty,
                preceding_ids,
                preceding_start,
                x,
                vocab,
                BLOCK=256,
                num_warps=2,
                enable_fp_fusion=False,
            )
    gumbel_cells, weight_cells = device_tables(device)
    launch(
        _choose_kernel,
        (num_rows,),
        x,
        temperature,
        top_k,
        top_p,
        log_min_p,
        keys,
        gumbel_cells,
        weight_cells,
        tokens,
        margins,
        edge_margins,
        vocab,
        IS_GREEDY=is_greedy,
        BLOCK=BLOCK,
        num_warps=8,
        enable_fp_fusion=False,
    )
    launch(
        _accept_kernel,
        (1,),
        tokens,
        draft,
        accepted,
        num_rows,
        BLOCK=triton.next_power_of_2(max(num_rows, 16)),
        num_warps=4,
    )
    return tokens, margins, edge_margins, accepted
