"""Attention over a table of extents: prefill chunks, verify chunks and single tokens mixed.

A token attends the rows of its own sequence whose position is not greater than its own and, with a
window, greater than its own minus the window. Positions are compared, never row numbers, so that
extents may lie anywhere and in any order. Legend: T tokens, S sequences, E extents, R arena rows,
Rs rows that sequence s reads, Hq/Hkv heads, G = Hq/Hkv, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import e, log2
from typing import Protocol

import torch
import triton
import triton.language as tl

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.kv import LayerKV, dequantise_rows
from kernels.launch import launch, wait_for_inputs
from kernels.widening import float_of_int8


class Extent(Protocol):
    """A run of `num_rows` readable rows at consecutive positions (llm_engine.batch.ExtentView)."""

    @property
    def first_row(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def first_position(self) -> int: ...


@dataclass(frozen=True)
class AttentionTable:
    """Who reads what, built once per batch and used by every layer. All tensors int64."""

    extents: torch.Tensor  # [E, 3]: first_row, num_rows, first_position
    extent_start: torch.Tensor  # [S+1]: extents of sequence s are extent_start[s]:extent_start[s+1]
    query_start: torch.Tensor  # [S+1]: tokens of sequence s are query_start[s]:query_start[s+1]
    positions: torch.Tensor  # [T]
    # how the Triton kernel cuts the work:
    max_queries: int  # most tokens of one sequence
    max_readable: int  # most readable rows of one sequence

    @classmethod
    def build(
        cls,
        extents: Sequence[Sequence[Extent]],
        query_start: Sequence[int],
        positions: torch.Tensor,
    ) -> AttentionTable:
        """The table of a batch, on the device of `positions`.

        Raises:
            KernelArgumentError: the parts do not describe the same sequences and tokens.
        """
        require(
            len(query_start) == len(extents) + 1,
            f"{len(extents)} sequences of extents but query_start has {len(query_start)} entries",
        )
        require(
            query_start[0] == 0 and query_start[-1] == positions.shape[0],
            f"query_start spans {query_start[0]}..{query_start[-1]}, "
            f"the batch has {positions.shape[0]} tokens",
        )
        flat = [
            (extent.first_row, extent.num_rows, extent.first_position)
            for sequence in extents
            for extent in sequence
        ]
        starts = [0]
        for sequence in extents:
            starts.append(starts[-1] + len(sequence))
        device = positions.device
        return cls(
            torch.tensor(flat, dtype=torch.int64, device=device).reshape(-1, 3),
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.tensor(list(query_start), dtype=torch.int64, device=device),
            positions,
            max((end - start for start, end in pairwise(query_start)), default=0),
            max((sum(extent.num_rows for extent in own) for own in extents), default=0),
        )

    @property
    def num_sequences(self) -> int:
        return int(self.query_start.shape[0]) - 1

    @cached_property
    def readers(self) -> tuple[SequenceReader, ...]:
        """Per sequence with tokens: which tokens, rows and positions (for the torch reference)."""
        query_start, extent_start = self.query_start.tolist(), self.extent_start.tolist()
        extents = self.extents.tolist()
        readers = []
        for sequence in range(self.num_sequences):
            tokens = slice(query_start[sequence], query_start[sequence + 1])
            if tokens.start == tokens.stop:
                continue
            own = extents[extent_start[sequence] : extent_start[sequence + 1]]
            readers.append(SequenceReader(tokens, own, self.positions[tokens]))
        return tuple(readers)


class SequenceReader:
    """One sequence's tokens and the rows they may read, for the torch reference."""

    def __init__(self, tokens: slice, extents: list[list[int]], positions: torch.Tensor) -> None:
        self.tokens = tokens
        self._positions = positions  # [Ts]
        device = positions.device
        # One extent is a slice of the arena: no copy. Several are gathered.
        self.rows: slice | torch.Tensor  # Rs rows
        if len(extents) == 1:
            first_row, num_rows, first_position = extents[0]
            self.rows = slice(first_row, first_row + num_rows)
            self._row_positions = first_position + torch.arange(num_rows, device=device)
        else:
            self.rows = _concatenated(extents, 0, device)
            self._row_positions = _concatenated(extents, 2, device)  # [Rs]
        self._masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None) -> torch.Tensor:
        """[Ts, Rs] bool: True where the token attends the row."""
        if window not in self._masks:
            own, row = self._positions[:, None], self._row_positions[None, :]
            visible = row <= own
            if window is not None:
                visible &= row > own - window
            self._masks[window] = visible
        return self._masks[window]


def _concatenated(extents: list[list[int]], column: int, device: torch.device) -> torch.Tensor:
    """The runs `extent[column] .. + num_rows` of all extents, one after the other."""
    runs = [
        torch.arange(extent[column], extent[column] + extent[1], device=device)
        for extent in extents
    ]
    return torch.cat(runs) if runs else torch.empty(0, dtype=torch.int64, device=device)


def segment_attention_reference(
    q: torch.Tensor, cache: LayerKV, table: AttentionTable, scale: float, window: int | None
) -> torch.Tensor:
    """Torch reference: scores, softmax and sums in float32, one sequence after the other."""
    num_kv_heads, head_dim = cache.keys.shape[1:]
    out = torch.zeros_like(q)
    for reader in table.readers:
        keys = _rows(cache.keys, cache.key_scales, reader.rows)  # [Rs, Hkv, D]
        values = _rows(cache.values, cache.value_scales, reader.rows)
        own = q[reader.tokens].float()  # [Ts, Hq, D]
        grouped = own.reshape(own.shape[0], num_kv_heads, -1, head_dim)  # [Ts, Hkv, G, D]
        scores = torch.einsum("thgd,rhd->hgtr", grouped, keys) * scale
        visible = reader.mask(window)
        scores = scores.masked_fill(~visible, -torch.inf)
        # A token that sees no row gets zeros: its maximum is -inf, its weights are set to 0.
        weights = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0)
        mixed = torch.einsum("hgtr,rhd->thgd", weights, values)
        out[reader.tokens] = mixed.reshape(own.shape).to(q.dtype)
    return out


def _rows(
    data: torch.Tensor, scales: torch.Tensor | None, rows: slice | torch.Tensor
) -> torch.Tensor:
    """float32[Rs, Hkv, D] of the chosen rows."""
    return data[rows].float() if scales is None else dequantise_rows(data[rows], scales[rows])


@triton.jit
def _find_sequence(query_start_ptr, tile, num_sequences, TILE_TOKENS: tl.constexpr):
    """The sequence of a tile: sequence s has the tiles from query_start[s] // TILE_TOKENS + s on.

    That is at least as many as its tokens need, so the grid depends on T and S alone.
    """
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // TILE_TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


# these change from step to step: specialising on them would compile anew
@triton.jit(do_not_specialize=["num_tokens", "num_sequences"])
def _segment_attention_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    extents_ptr,
    extent_start_ptr,
    query_start_ptr,
    positions_ptr,
    out_ptr,
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    num_tokens,
    num_sequences,
    scale_log2,
    WINDOW: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    INT8_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (Hkv, splits, tiles of queries): programs that start together read neighbouring rows.

    A tile holds consecutive tokens of one sequence, each with the G query heads of one key/value
    head; a split is a share of the positions that the tile may see. Softmax is computed online
    (Milakov & Gimelshein 2018), in base 2.
    """
    TILE_TOKENS: tl.constexpr = BLOCK_M // GROUP
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    tile = tl.program_id(2)
    sequence = _find_sequence(query_start_ptr, tile, num_sequences, TILE_TOKENS)
    first_token = tl.load(query_start_ptr + sequence)
    last_token = tl.load(query_start_ptr + sequence + 1)
    first_token += (tile - (first_token // TILE_TOKENS + sequence)) * TILE_TOKENS
    if first_token >= last_token:
        wait_for_inputs(OVERLAP)
        return

    lane = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    column = tl.arange(0, BLOCK_N)
    token = first_token + lane // GROUP  # [M] int64
    head = kv_head * GROUP + lane % GROUP  # [M]
    real = (lane < TILE_TOKENS * GROUP) & (token < last_token)
    # only what row numbers enter is 64 bits wide: registers are what a tile is short of
    position = tl.load(positions_ptr + token, mask=real, other=-1).to(tl.int32)
    # This split's share of the positions that any query of the tile may see.
    first_seen = 0
    last_seen = tl.max(position, 0)
    if WINDOW > 0:
        nearest = tl.min(tl.where(real, position, last_seen), 0)
        first_seen = tl.maximum(nearest - WINDOW + 1, 0)
    if NUM_SPLITS > 1:
        share = (tl.cdiv(last_seen - first_seen + 1, NUM_SPLITS) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        first_seen += split * share
        last_seen = tl.minimum(last_seen, first_seen + share - 1)

    first_extent = tl.load(extent_start_ptr + sequence)
    last_extent = tl.load(extent_start_ptr + sequence + 1)
    wait_for_inputs(OVERLAP)
    in_head = dim < HEAD_DIM
    q_offset = (token[:, None] * NUM_HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr + q_offset, mask=real[:, None] & in_head[None, :], other=0.0)
    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for extent in range(first_extent, last_extent):
        first_row = tl.load(extents_ptr + extent * 3)
        num_rows = tl.load(extents_ptr + extent * 3 + 1).to(tl.int32)
        first_position = tl.load(extents_ptr + extent * 3 + 2).to(tl.int32)
        begin = tl.maximum(first_seen - first_position, 0)
        end = tl.minimum(num_rows, last_seen - first_position + 1)
        for start in range(begin, end, BLOCK_N):
            row = first_row + start + column  # [N] int64
            key_position = first_position + start + column
            readable = start + column < end
            row_head = row * NUM_KV_HEADS + kv_head
            k = tl.load(
                keys_ptr + row_head[None, :] * HEAD_DIM + dim[:, None],
                mask=readable[None, :] & in_head[:, None],
                other=0,
            )
            if INT8_ROWS:
                k = float_of_int8(k)
            scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale_log2
            if INT8_ROWS:
                scores *= tl.load(key_scales_ptr + row_head, mask=readable, other=0.0)[None, :]
            visible = readable[None, :] & (key_position[None, :] <= position[:, None])
            if WINDOW > 0:
                visible &= key_position[None, :] > position[:, None] - WINDOW
            scores = tl.where(visible, scores, float("-inf"))
            new_best = tl.maximum(best, tl.max(scores, 1))
            # a row that has seen nothing yet keeps -inf; subtracting it would give NaN
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)
            p = tl.exp2(scores - shift[:, None])
            fade = tl.exp2(best - shift)
            total = total * fade + tl.sum(p, 1)
            best = new_best
            v = tl.load(
                values_ptr + row_head[:, None] * HEAD_DIM + dim[None, :],
                mask=readable[:, None] & in_head[None, :],
                other=0,
            )
            if INT8_ROWS:
                v = float_of_int8(v)
                p *= tl.load(value_scales_ptr + row_head, mask=readable, other=0.0)[None, :]
            acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * fade[:, None], input_precision="ieee")

    out_mask = real[:, None] & in_head[None, :]
    if NUM_SPLITS > 1:
        slot = (split * num_tokens + token) * NUM_HEADS + head
        tl.store(partial_ptr + slot[:, None] * HEAD_DIM + dim[None, :], acc, mask=out_mask)
        tl.store(partial_max_ptr + slot, best, mask=real)
        tl.store(partial_sum_ptr + slot, total, mask=real)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + q_offset, acc.to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["num_token_heads"])
def _merge_splits_kernel(
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    out_ptr,
    num_token_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (T * Hq): merge the splits' unnormalised sums by their maxima."""
    wait_for_inputs(OVERLAP)
    token_head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, NUM_SPLITS)
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_DIM
    slot = split.to(tl.int64) * num_token_heads + token_head
    best = tl.load(partial_max_ptr + slot)
    top = tl.max(best, 0)
    weight = tl.exp2(best - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(tl.load(partial_sum_ptr + slot) * weight, 0)
    part = tl.load(
        partial_ptr + slot[:, None] * HEAD_DIM + dim[None, :], mask=in_head[None, :], other=0.0
    )
    out = tl.sum(part * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + token_head * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=in_head)


TARGET_PROGRAMS = 512  # about four per multiprocessor of an H200
MIN_SPLIT_ROWS = 128  # a shorter share of the cache costs more to merge than it saves
MAX_SPLITS = 32


def _num_splits(num_programs: int, max_readable: int) -> int:
    """A power of two, so that few variants are compiled; 1 when the batch alone fills the chip."""
    wanted = min(
        TARGET_PROGRAMS // max(num_programs, 1), max_readable // MIN_SPLIT_ROWS, MAX_SPLITS
    )
    return 1 << max(wanted.bit_length() - 1, 0)


def _segment_attention_triton(
    q: torch.Tensor, cache: LayerKV, table: AttentionTable, scale: float, window: int | None
) -> torch.Tensor:
    q = q.contiguous()
    out = torch.empty_like(q)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = cache.keys.shape[1]
    group = num_heads // num_kv_heads
    few = table.max_queries * group <= 16
    many = 64 if q.dtype != torch.float32 else 32
    block_m = max(16 if few else many, triton.next_power_of_2(group))
    num_tiles = num_tokens // (block_m // group) + table.num_sequences
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_n = 64 if block_d <= 128 and q.dtype != torch.float32 else 32
    num_splits = _num_splits(num_tiles * num_kv_heads, table.max_readable)
    num_stages = 2
    if few and q.dtype != torch.float32:  # bound by memory: as much as possible under way
        if cache.is_quantised:
            # long tiles of wide heads spill where nothing is split or few heads share a row
            is_long = block_d <= 64 or (num_splits > 1 and group >= 4)
            block_n, num_stages = 2 * block_n if is_long else block_n, 3
        else:
            block_n, num_stages = 32 if block_d <= 64 else block_n, 4
    partial = partial_max = partial_sum = None
    if num_splits > 1:
        partial = torch.empty(num_splits, *q.shape, dtype=torch.float32, device=q.device)
        partial_max, partial_sum = torch.empty(2, *partial.shape[:3], device=q.device)
    launch(
        _segment_attention_kernel,
        (num_kv_heads, num_splits, num_tiles),
        q,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        table.extents,
        table.extent_start,
        table.query_start,
        table.positions,
        out,
        partial,
        partial_max,
        partial_sum,
        num_tokens,
        table.num_sequences,
        scale * log2(e),
        WINDOW=window or 0,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        NUM_SPLITS=num_splits,
        INT8_ROWS=cache.is_quantised,
        num_warps=4 if block_m < 64 or block_d <= 64 else 8,
        num_stages=num_stages,
        maxnreg=255,  # left to itself, ptxas spills a few bytes to fit more programs
    )
    if num_splits > 1:
        launch(
            _merge_splits_kernel,
            (num_tokens * num_heads,),
            partial,
            partial_max,
            partial_sum,
            out,
            num_tokens * num_heads,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
            NUM_SPLITS=num_splits,
            num_warps=4,
        )
    return out


def segment_attention(
    q: torch.Tensor, cache: LayerKV, table: AttentionTable, scale: float, window: int | None = None
) -> torch.Tensor:
    """Rotated q[T,Hq,D] attends the rows of `table` in `cache` -> out[T,Hq,D].

    Rows outside a token's view never count, whatever finite values they hold. A token that sees no
    row gets zeros. `scale` multiplies q.k; `window` is the number of positions seen, the token's
    own included.

    Raises:
        KernelArgumentError: shapes do not agree, or the window is not positive.
    """
    require(q.dim() == 3, f"q must be [T, Hq, D], got shape {tuple(q.shape)}")
    num_kv_heads, head_dim = cache.keys.shape[1:]
    require(
        q.shape[2] == head_dim and q.shape[1] % num_kv_heads == 0,
        f"q {tuple(q.shape)} does not fit {num_kv_heads} K/V heads of {head_dim} elements",
    )
    require(
        q.shape[0] == table.positions.shape[0],
        f"q has {q.shape[0]} tokens, the table {table.positions.shape[0]}",
    )
    require(window is None or window > 0, f"window must be positive or None, got {window}")
    if backend_for(q) == "torch":
        return segment_attention_reference(q, cache, table, scale, window)
    return _segment_attention_triton(q, cache, table, scale, window)
