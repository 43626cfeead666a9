"""Move cached keys along by some positions: the in-place form of the suffix policy `rotate`.

A rotation by a position and a rotation by a shift add up, R(a) R(b) = R(a + b) per rotary pair, so
a key written at position a is turned by the shift's angles alone. Values know no positions.
Legend: L layers, R arena rows, n shifted rows, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.kv import KVArena, dequantise_rows, quantise_rows
from kernels.launch import launch, wait_for_inputs
from kernels.rope import store_rows


def rope_shift_reference(
    arena: KVArena, first_row: int, num_rows: int, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Torch reference."""
    rows = slice(first_row, first_row + num_rows)
    stored = arena.keys[:, rows]  # [L, n, Hkv, D]
    if arena.key_scales is None:
        stored.copy_(_turned(stored.float(), cos, sin))
        return
    keys = _turned(dequantise_rows(stored, arena.key_scales[:, rows]), cos, sin)
    arena.keys[:, rows], arena.key_scales[:, rows] = quantise_rows(keys)


def _turned(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = keys.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@triton.jit(do_not_specialize=["first_slot", "num_slots"])
def _rope_shift_kernel(
    keys_ptr,
    scales_ptr,
    cos_ptr,
    sin_ptr,
    first_slot,
    num_slots,
    num_arena_slots,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_S: tl.constexpr,
    INT8: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (blocks of slots, L). A slot is one head of one row; a run of rows is a run of slots."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)
    slot = tl.program_id(1).to(tl.int64) * num_arena_slots + first_slot + lane
    dim = tl.arange(0, BLOCK)[None, :]
    is_slot = lane < num_slots
    exists = is_slot[:, None] & (dim < HALF)
    wait_for_inputs(OVERLAP)
    cos = tl.load(cos_ptr + dim, mask=dim < HALF, other=0.0)
    sin = tl.load(sin_ptr + dim, mask=dim < HALF, other=0.0)
    at = keys_ptr + slot[:, None] * (2 * HALF) + dim
    first = tl.load(at, mask=exists, other=0).to(tl.float32)
    second = tl.load(at + HALF, mask=exists, other=0).to(tl.float32)
    if INT8:
        scale = tl.load(scales_ptr + slot, mask=is_slot, other=0.0)[:, None]
        first *= scale
        second *= scale
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    store_rows(keys_ptr, scales_ptr, slot, is_slot, turned_first, turned_second, HALF, BLOCK, INT8)


BLOCK_SLOTS = 16


def rope_shift(
    arena: KVArena, first_row: int, num_rows: int, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """Turn the keys of rows first_row .. + num_rows, in all layers, by the angles of cos/sin[D/2].

    cos and sin are float32. int8 rows are quantised again, with new scales: every shift costs them
    up to half a step more.

    Raises:
        KernelArgumentError: the rows are not in the arena, or shapes or dtypes do not agree.
    """
    num_layers, num_arena_rows, num_kv_heads, head_dim = arena.keys.shape
    require(
        first_row >= 0 and num_rows >= 0 and first_row + num_rows <= num_arena_rows,
        f"rows {first_row}..{first_row + num_rows} are not in an arena of {num_arena_rows}",
    )
    for name, tensor in (("cos", cos), ("sin", sin)):
        require(
            tuple(tensor.shape) == (head_dim // 2,) and tensor.dtype == torch.float32,
            f"{name} must be float32 ({head_dim // 2},), got {tensor.dtype} {tuple(tensor.shape)}",
        )
    if backend_for(arena.keys) == "torch":
        rope_shift_reference(arena, first_row, num_rows, cos, sin)
        return
    block = triton.next_power_of_2(head_dim // 2)
    launch(
        _rope_shift_kernel,
        (triton.cdiv(num_rows * num_kv_heads, BLOCK_SLOTS), num_layers),
        arena.keys,
        arena.key_scales,
        cos.contiguous(),
        sin.contiguous(),
        first_row * num_kv_heads,
        num_rows * num_kv_heads,
        num_arena_rows * num_kv_heads,
        HALF=head_dim // 2,
        BLOCK=block,
        BLOCK_S=BLOCK_SLOTS,
        INT8=arena.key_scales is not None,
        num_warps=4 if block >= 64 else 2,  # 16 bytes a thread
        # unfused, keys are the reference's bit for bit
        enable_fp_fusion=False,
    )
