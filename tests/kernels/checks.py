"""What a kernel must satisfy on any device; the interpreter tests and scripts/gpu_check.py call it.

Every check draws fresh inputs, lets the wrapper allocate its outputs as NaN, runs the Triton side
and compares with a float64 reference. kernels/README.md explains the tolerances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from kernels.dispatch import use_backend
from kernels.kv import KVArena, LayerKV, dequantise_rows
from kernels.linear import DenseWeight, LinearWeight, linear, quantise_int4, quantise_int8
from kernels.noise import row_key
from kernels.rms_norm import rms_norm
from kernels.rope import rope_and_write_kv, rope_and_write_kv_reference
from kernels.rope_shift import rope_shift, rope_shift_reference
from kernels.sample import (
    NO_DRAFT,
    TOP_P_OFF,
    SampleParams,
    sample_and_verify,
    sample_and_verify_reference,
)
from kernels.segment_attention import AttentionTable, segment_attention
from kernels.swiglu import swiglu

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@contextmanager
def triton_with_poisoned_outputs() -> Iterator[None]:
    """Force the Triton side; memory that torch leaves unset holds NaN (or -1) instead of luck."""

    def poisoned(allocate: Any) -> Any:
        def allocate_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

        return allocate_poisoned

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
        mock.patch.object(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty)),
        use_backend("triton"),
    ):
        yield


def assert_close(out: torch.Tensor, reference: torch.Tensor) -> None:
    """Every |difference| within the tolerance of |reference| + rms(reference); NaN never is."""
    assert out.shape == reference.shape, (out.shape, reference.shape)
    wanted = reference.double().cpu()
    error = (out.double().cpu() - wanted).abs()
    bound = TOLERANCE[out.dtype] * (wanted.abs() + wanted.pow(2).mean().sqrt() + 1e-6)
    worst = (error / bound).max() if error.numel() else torch.tensor(0.0)
    assert bool((error <= bound).all()), f"{float(worst):.2f} times the tolerance of {out.dtype}"


def check_rms_norm(
    device: str, num_tokens: int, hidden: int, dtype: torch.dtype, has_residual: bool
) -> None:
    x, residual = torch.randn(2, num_tokens, hidden, device=device).to(dtype)
    weight = torch.randn(hidden, device=device).to(dtype)
    with triton_with_poisoned_outputs():
        y, total = rms_norm(x, weight, 1e-5, residual if has_residual else None)
    # the sum is rounded once, as torch's own addition does: equal bit for bit
    assert torch.equal(total, x + residual if has_residual else x)
    wide = total.double()
    normed = wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    assert_close(y, normed * weight.double())


def check_swiglu(device: str, num_tokens: int, intermediate: int, dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(num_tokens, 2 * intermediate, device=device)).to(dtype)
    with triton_with_poisoned_outputs():
        out = swiglu(gate_up)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(out, torch.nn.functional.silu(gate) * up)


def check_rope(
    device: str, heads: tuple[int, int, int], dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """`heads`: query heads, key/value heads, head dimension. q, k, v slice one projection."""
    num_heads, num_kv_heads, head_dim = heads
    num_tokens, num_rows = 5, 16
    sizes = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
    fused = torch.randn(num_tokens, sum(sizes), device=device).to(dtype)
    q, k, v = (part.view(num_tokens, -1, head_dim) for part in fused.split(sizes, dim=1))
    if kv_dtype == torch.int8:
        v = v.clone()
        v[0, 0] = 0.0  # a row of zeros has scale 0
    angle = 100 * torch.randn(num_tokens, head_dim // 2, device=device)
    cos, sin = angle.cos(), angle.sin()
    rows = torch.tensor([3, 0, 15, 8, 9], device=device)
    written = random_kv(num_rows, num_kv_heads, head_dim, kv_dtype, device)
    expected = LayerKV(*(None if part is None else part.cpu().clone() for part in _parts(written)))
    with triton_with_poisoned_outputs():
        out = rope_and_write_kv(q, k, v, cos, sin, rows, written)
    # not fused on the GPU: rotation, quantisation and untouched rows equal the CPU's bit for bit
    on_cpu = [part.cpu() for part in (q, k, v, cos, sin, rows)]
    assert torch.equal(out.cpu(), rope_and_write_kv_reference(*on_cpu, expected))
    for mine, theirs in zip(_parts(written), _parts(expected), strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine.cpu(), theirs)
    first, second = q.double().chunk(2, dim=-1)
    wide_cos, wide_sin = cos.double()[:, None], sin.double()[:, None]
    turned = (first * wide_cos - second * wide_sin, second * wide_cos + first * wide_sin)
    assert_close(out, torch.cat(turned, dim=-1))


def check_rope_shift(device: str, num_kv_heads: int, head_dim: int, kv_dtype: torch.dtype) -> None:
    """Two layers; rows outside the shifted run stay as they are."""
    arena = KVArena(2, 12, num_kv_heads, head_dim, kv_dtype, device)
    expected = KVArena(2, 12, num_kv_heads, head_dim, kv_dtype)
    for layer, twin in zip(arena.layers, expected.layers, strict=True):
        source = random_kv(12, num_kv_heads, head_dim, kv_dtype, "cpu")
        for mine, theirs, part in zip(_parts(layer), _parts(twin), _parts(source), strict=True):
            if mine is not None and theirs is not None and part is not None:
                mine.copy_(part)
                theirs.copy_(part)
    angle = 100 * torch.randn(head_dim // 2)
    cos, sin = angle.cos(), angle.sin()
    rope_shift_reference(expected, 3, 7, cos, sin)
    with triton_with_poisoned_outputs():
        rope_shift(arena, 3, 7, cos.to(device), sin.to(device))
    for layer, twin in zip(arena.layers, expected.layers, strict=True):
        for mine, theirs in zip(_parts(layer), _parts(twin), strict=True):
            assert mine is None or torch.equal(mine.cpu(), theirs)


@dataclass(frozen=True, slots=True)
class Span:
    """An extent's readable part."""

    first_row: int
    num_rows: int
    first_position: int


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Sequences given by their extents and the positions of their tokens."""

    num_rows: int
    extents: tuple[tuple[Span, ...], ...]
    positions: tuple[tuple[int, ...], ...]

    def table(self, device: str) -> AttentionTable:
        starts = [0]
        for own in self.positions:
            starts.append(starts[-1] + len(own))
        flat = [position for own in self.positions for position in own]
        return AttentionTable.build(self.extents, starts, torch.tensor(flat, device=device))


# a chunk over several extents out of order (one empty), single tokens, a token without any row
MIXED = AttentionCase(
    num_rows=160,
    extents=(
        (Span(100, 5, 0), Span(10, 0, 5), Span(20, 20, 5), Span(60, 9, 25)),
        (Span(110, 33, 0),),
        (Span(159, 1, 0),),
        (Span(0, 0, 0),),
        (),
    ),
    positions=(tuple(range(21, 34)), (32,), (0,), (4,), (0,)),
)
# a verify chunk whose tokens sit in two runs of positions (an edited slot, then the draft)
VERIFY = AttentionCase(
    num_rows=64,
    extents=((Span(3, 7, 0), Span(30, 12, 7)), (Span(50, 2, 0),)),
    positions=((4, 5, 6, 16, 17, 18), (1,)),
)
# long enough for the cache to be split between programs
LONG_DECODE = AttentionCase(
    num_rows=1400,
    extents=((Span(700, 520, 0), Span(5, 100, 520)), (Span(1300, 3, 0),)),
    positions=((619,), (2,)),
)


def check_attention(
    device: str,
    case: AttentionCase,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    window: int | None = None,
) -> None:
    """Rows that no extent shows hold NaN (NaN scales where rows are int8)."""
    num_heads, num_kv_heads, head_dim = heads
    cache = random_kv(case.num_rows, num_kv_heads, head_dim, kv_dtype, device)
    hidden = torch.ones(case.num_rows, dtype=torch.bool, device=device)
    for span in (span for own in case.extents for span in own):
        hidden[span.first_row : span.first_row + span.num_rows] = False
    for part in _parts(cache):
        if part is not None and part.is_floating_point():
            part[hidden] = torch.nan
    table = case.table(device)
    q = torch.randn(table.positions.shape[0], num_heads, head_dim, device=device).to(dtype)
    with triton_with_poisoned_outputs():
        out = segment_attention(q, cache, table, head_dim**-0.5, window)
    assert_close(out, attention_in_float64(q, cache, case, head_dim**-0.5, window))


def attention_in_float64(
    q: torch.Tensor, cache: LayerKV, case: AttentionCase, scale: float, window: int | None
) -> torch.Tensor:
    """One token and head group at a time, over exactly the rows it sees."""
    keys, values = cache.keys.double(), cache.values.double()
    if cache.key_scales is not None and cache.value_scales is not None:
        keys = dequantise_rows(cache.keys, cache.key_scales).double()
        values = dequantise_rows(cache.values, cache.value_scales).double()
    num_kv_heads = keys.shape[1]
    out = torch.zeros_like(q, dtype=torch.float64)
    owners = [s for s, own in enumerate(case.positions) for _ in own]
    flat = [position for own in case.positions for position in own]
    for token, (sequence, position) in enumerate(zip(owners, flat, strict=True)):
        seen = [
            span.first_row + index
            for span in case.extents[sequence]
            for index in range(span.num_rows)
            if span.first_position + index <= position
            and (window is None or span.first_position + index > position - window)
        ]
        if not seen:
            continue
        own = q[token].double().view(num_kv_heads, -1, q.shape[2])  # [Hkv, G, D]
        weights = torch.softmax(torch.einsum("hgd,rhd->hgr", own, keys[seen]) * scale, dim=-1)
        out[token] = torch.einsum("hgr,rhd->hgd", weights, values[seen]).reshape(q.shape[1:])
    return out


def check_linear(
    device: str, sizes: tuple[int, int, int], dtype: torch.dtype, bits: int, has_bias: bool
) -> None:
    """`sizes`: tokens, outputs, inputs; `bits` 0: dense weights."""
    num_tokens, num_outputs, num_inputs = sizes
    bias = torch.randn(num_outputs, device=device).to(dtype) if has_bias else None
    w = torch.randn(num_outputs, num_inputs, device=device)
    weight: LinearWeight
    if bits == 0:
        weight = DenseWeight(w.to(dtype), bias)
    else:
        weight = quantise_int8(w, bias) if bits == 8 else quantise_int4(w, bias)
    x = torch.randn(num_tokens, num_inputs, device=device).to(dtype)
    with triton_with_poisoned_outputs():
        out = linear(x, weight)
    reference = x.double() @ weight.dense().to(dtype).double().T
    assert_close(out, reference if bias is None else reference + bias.double())


def check_rows_beyond_int32(device: str) -> None:
    """An int8 arena of more than 2^31 elements: the last row is written and read back."""
    num_kv_heads, head_dim = 8, 128
    num_rows = 2**31 // (num_kv_heads * head_dim) + 2
    # left unset: only pages that are touched take memory
    rows = torch.empty(2, num_rows, num_kv_heads, head_dim, dtype=torch.int8, device=device)
    scales = torch.empty(2, num_rows, num_kv_heads, device=device)
    cache = LayerKV(rows[0], rows[1], scales[0], scales[1])
    case = AttentionCase(num_rows, ((Span(num_rows - 1, 1, 0),),), ((0,),))
    q, k, v = (torch.randn(1, num_kv_heads, head_dim, device=device) for _ in range(3))
    angle = torch.zeros(1, head_dim // 2, device=device)
    last = torch.tensor([num_rows - 1], device=device)
    with triton_with_poisoned_outputs():
        rope_and_write_kv(q, k, v, angle.cos(), angle.sin(), last, cache)
        out = segment_attention(q, cache, case.table(device), 0.1)
    # a single visible row: the output is that row's value
    value = dequantise_rows(cache.values[-1:], scales[1, -1:])
    assert_close(out, value)
    assert bool((value - v).abs().max() <= scales[1, -1].max() / 2 + 1e-6)


def check_shift_beyond_int32(device: str) -> None:
    """The last row of an int8 arena of more than 2^31 elements is turned as any other."""
    num_kv_heads, head_dim = 8, 128
    num_rows = 2**31 // (num_kv_heads * head_dim) + 2
    arena = KVArena(1, 1, num_kv_heads, head_dim, torch.int8, device)
    # left unset: only pages that are touched take memory
    arena.num_rows = num_rows
    arena.keys = torch.empty(1, num_rows, num_kv_heads, head_dim, dtype=torch.int8, device=device)
    arena.key_scales = torch.empty(1, num_rows, num_kv_heads, device=device)
    expected = KVArena(1, 1, num_kv_heads, head_dim, torch.int8)
    row = random_kv(1, num_kv_heads, head_dim, torch.int8, "cpu")
    assert row.key_scales is not None and expected.key_scales is not None
    arena.keys[0, -1:], arena.key_scales[0, -1:] = row.keys.to(device), row.key_scales.to(device)
    expected.keys[0], expected.key_scales[0] = row.keys, row.key_scales
    angle = torch.randn(head_dim // 2)
    rope_shift_reference(expected, 0, 1, angle.cos(), angle.sin())
    with triton_with_poisoned_outputs():
        rope_shift(arena, num_rows - 1, 1, angle.cos().to(device), angle.sin().to(device))
    assert torch.equal(arena.keys[0, -1:].cpu(), expected.keys[0])
    assert torch.equal(arena.key_scales[0, -1:].cpu(), expected.key_scales[0])


def check_sample(device: str, vocab: int, is_greedy: bool = False) -> None:
    """Every setting alone and all together, with equal scores, against the CPU, bit for bit."""
    settings = {  # one column per row
        "temperature": (0.0, 1.0, 0.7, 1.0, 1.3, 0.9, 2.0, 0.6),
        "top_k": (0, 0, 3, 0, 0, 40, 1, 0),
        "top_p": (1.0, 1.0, 1.0, 0.9, 1.0, 0.8, 0.05, 1e-9),
        "min_p": (0.0, 0.0, 0.0, 0.0, 0.1, 0.05, 0.3, 0.0),
        "penalty": (1.2, 1.0, 1.0, 1.0, 1.1, 1.3, 1.0, 0.8),
    }
    columns = {name: torch.tensor(values) for name, values in settings.items()}
    num_rows = len(settings["top_k"])
    keys = [row_key(7, row, 3 * row) for row in range(num_rows)]
    on_cpu = SampleParams(
        is_greedy=is_greedy,
        temperature=columns["temperature"],
        top_k=columns["top_k"],
        top_p=(columns["top_p"] * TOP_P_OFF).long(),
        log_min_p=columns["min_p"].log(),
        penalty=columns["penalty"],
        keys=torch.tensor(keys),
        preceding_ids=torch.randint(0, vocab, (5 * num_rows,)),
        preceding_start=5 * torch.arange(num_rows + 1),
    )
    logits = 3 * torch.randn(num_rows, vocab)
    logits[::2] = logits[::2].round()  # many equal scores
    logits[:, 1::3] = -torch.inf  # masked tokens
    draft = torch.full((num_rows,), NO_DRAFT)
    draft[:-1] = sample_and_verify_reference(logits, draft, on_cpu).tokens[:-1]
    draft[2], draft[5] = NO_DRAFT, (draft[5] + 1) % vocab  # a run's end, and a wrong draft
    expected = sample_and_verify_reference(logits, draft, on_cpu)
    moved = SampleParams(
        is_greedy, *(getattr(on_cpu, name).to(device) for name in SampleParams.__slots__[1:])
    )
    with triton_with_poisoned_outputs():
        sampled = sample_and_verify(logits.to(device), draft.to(device), moved)
    assert torch.equal(sampled.tokens.cpu(), expected.tokens)
    assert torch.equal(sampled.accepted.cpu(), expected.accepted)
    assert torch.equal(sampled.margins.cpu(), expected.margins)
    # a nucleus' edge is a quotient of sums, rounded differently
    edges, wanted = sampled.edge_margins.cpu(), expected.edge_margins
    assert torch.allclose(edges, wanted, rtol=1e-5, atol=1e-6), (edges, wanted)


def random_kv(
    num_rows: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> LayerKV:
    shape = (num_rows, num_kv_heads, head_dim)
    if dtype == torch.int8:
        keys, values = torch.randint(-127, 128, (2, *shape), dtype=dtype, device=device)
        key_scales, value_scales = torch.rand(2, num_rows, num_kv_heads, device=device) / 64
        return LayerKV(keys, values, key_scales, value_scales)
    keys, values = torch.randn(2, *shape, device=device).to(dtype)
    return LayerKV(keys, values)


def _parts(cache: LayerKV) -> tuple[torch.Tensor | None, ...]:
    return cache.keys, cache.values, cache.key_scales, cache.value_scales
