"""Rotary position embedding and the write of K/V into arena rows (Su et al. 2021, eq. 34).

Pairs are split by halves (element d with element d + D/2), the convention of Hugging Face
checkpoints. Legend: T tokens, Hq query heads, Hkv key/value heads, D head dimension, R arena rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.kv import FLOAT_KV_DTYPES, LayerKV, quantise_rows
from kernels.launch import launch, wait_for_inputs


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x[T,H,D] turned by the angles of cos/sin[T,D/2] in float32, rounded to x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rope_and_write_kv_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rows: torch.Tensor,
    cache: LayerKV,
) -> torch.Tensor:
    """Torch reference."""
    key = rotate(k, cos, sin)
    if cache.key_scales is not None and cache.value_scales is not None:
        cache.keys[rows], cache.key_scales[rows] = quantise_rows(key)
        cache.values[rows], cache.value_scales[rows] = quantise_rows(v)
    else:
        cache.keys[rows] = key.to(cache.keys.dtype)
        cache.values[rows] = v.to(cache.values.dtype)
    return rotate(q, cos, sin)


@triton.jit
def turned(at, cos, sin, exists, HALF: tl.constexpr):
    """The heads at `at` [S, BLOCK] rotated: float32 halves. `exists` masks heads and elements."""
    first = tl.load(at, mask=exists, other=0).to(tl.float32)
    second = tl.load(at + HALF, mask=exists, other=0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def store_rows(
    data_ptr,
    scale_ptr,
    slot,
    is_slot,
    first,
    second,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    INT8: tl.constexpr,
):
    """Write heads slot[S] of rows, given as halves [S, BLOCK] float32; int8 as `quantise_rows`."""
    dim = tl.arange(0, BLOCK)[None, :]
    if INT8:
        peak = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        scale = tl.div_rn(peak, 127.0)
        divisor = tl.broadcast_to(tl.where(scale > 0.0, scale, 1.0)[:, None], first.shape)
        # adding and taking away 1.5 x 2^23 rounds to the nearest integer, ties to even
        first = (tl.div_rn(first, divisor) + 12582912.0) - 12582912.0
        second = (tl.div_rn(second, divisor) + 12582912.0) - 12582912.0
        tl.store(scale_ptr + slot, scale, mask=is_slot)
    at = data_ptr + slot[:, None] * (2 * HALF) + dim
    exists = is_slot[:, None] & (dim < HALF)
    tl.store(at, first.to(data_ptr.dtype.element_ty), mask=exists)
    tl.store(at + HALF, second.to(data_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _rope_and_write_kv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    rows_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    out_ptr,
    q_stride,
    k_stride,
    v_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    INT8: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (T, blocks of BLOCK_H query heads + blocks of BLOCK_KV key heads). Key heads are written
    to the token's arena row, and their values with them.
    """
    QUERY_BLOCKS: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    dim = tl.arange(0, BLOCK)
    in_half = (dim < HALF)[None, :]
    wait_for_inputs(OVERLAP)
    cos = tl.load(cos_ptr + token * HALF + dim[None, :], mask=in_half, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + dim[None, :], mask=in_half, other=0.0)
    if block < QUERY_BLOCKS:
        head = block * BLOCK_H + tl.arange(0, BLOCK_H)
        exists = (head < NUM_HEADS)[:, None] & in_half
        within = head[:, None] * (2 * HALF) + dim[None, :]
        first, second = turned(q_ptr + token * q_stride + within, cos, sin, exists, HALF)
        target = out_ptr + token * (NUM_HEADS * 2 * HALF) + within
        tl.store(target, first.to(out_ptr.dtype.element_ty), mask=exists)
        tl.store(target + HALF, second.to(out_ptr.dtype.element_ty), mask=exists)
    else:
        kv_head = (block - QUERY_BLOCKS) * BLOCK_KV + tl.arange(0, BLOCK_KV)
        is_kv_head = kv_head < NUM_KV_HEADS
        is_real = is_kv_head[:, None] & in_half
        kv_within = kv_head[:, None] * (2 * HALF) + dim[None, :]
        slot = tl.load(rows_ptr + token) * NUM_KV_HEADS + kv_head
        k_first, k_second = turned(k_ptr + token * k_stride + kv_within, cos, sin, is_real, HALF)
        # rounded to the activations' dtype first, whatever the arena's is
        k_first = k_first.to(k_ptr.dtype.element_ty).to(tl.float32)
        k_second = k_second.to(k_ptr.dtype.element_ty).to(tl.float32)
        store_rows(keys_ptr, key_scales_ptr, slot, is_kv_head, k_first, k_second, HALF, BLOCK, INT8)
        value = v_ptr + token * v_stride + kv_within
        v_first = tl.load(value, mask=is_real, other=0.0).to(tl.float32)
        v_second = tl.load(value + HALF, mask=is_real, other=0.0).to(tl.float32)
        store_rows(
            values_ptr, value_scales_ptr, slot, is_kv_head, v_first, v_second, HALF, BLOCK, INT8
        )


BLOCK_HEADS = 16


def _rope_and_write_kv_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rows: torch.Tensor,
    cache: LayerKV,
) -> torch.Tensor:
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    q, k, v = (_with_dense_heads(tensor) for tensor in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block = triton.next_power_of_2(head_dim // 2)
    block_kv = min(8, triton.next_power_of_2(num_kv_heads))
    num_blocks = triton.cdiv(num_heads, BLOCK_HEADS) + triton.cdiv(num_kv_heads, block_kv)
    launch(
        _rope_and_write_kv_kernel,
        (num_tokens, num_blocks),
        q,
        k,
        v,
        cos.contiguous(),
        sin.contiguous(),
        rows,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        BLOCK=block,
        BLOCK_H=BLOCK_HEADS,
        BLOCK_KV=block_kv,
        INT8=cache.is_quantised,
        num_warps=2 if block >= 64 else 1,  # 16 bytes a thread
        # unfused, the angles and the int8 rows are the reference's bit for bit
        enable_fp_fusion=False,
    )
    return out


def _with_dense_heads(x: torch.Tensor) -> torch.Tensor:
    """x[T,H,D] itself if heads are dense (slices of a fused projection are), else a copy."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def rope_and_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rows: torch.Tensor,
    cache: LayerKV,
) -> torch.Tensor:
    """Rotate q[T,Hq,D] and k[T,Hkv,D], write k, v to arena rows `rows[T]`; -> rotated q[T,Hq,D].

    cos/sin[T,D/2] float32 are gathered by position once per batch. Rows of one call are distinct.
    int8 arenas get one scale per row and head.

    Raises:
        KernelArgumentError: shapes or dtypes do not agree.
    """
    require(q.dim() == 3 and q.shape[2] % 2 == 0, f"q must be [T, Hq, D], D even, got {_shape(q)}")
    num_tokens, _, head_dim = q.shape
    kv_shape = (num_tokens, cache.keys.shape[1], head_dim)
    for name, tensor in (("k", k), ("v", v)):
        require(
            tuple(tensor.shape) == kv_shape and tensor.dtype == q.dtype,
            f"{name} must be {q.dtype} {kv_shape}, got {tensor.dtype} {_shape(tensor)}",
        )
    for name, tensor in (("cos", cos), ("sin", sin)):
        require(
            tuple(tensor.shape) == (num_tokens, head_dim // 2) and tensor.dtype == torch.float32,
            f"{name} must be float32 {(num_tokens, head_dim // 2)}, "
            f"got {tensor.dtype} {_shape(tensor)}",
        )
    require(
        tuple(rows.shape) == (num_tokens,) and rows.dtype == torch.int64,
        f"rows must be int64 ({num_tokens},), got {rows.dtype} {_shape(rows)}",
    )
    require(
        cache.keys.shape[2] == head_dim,
        f"arena rows hold heads of {cache.keys.shape[2]} elements, q has {head_dim}",
    )
    require(
        cache.keys.dtype in FLOAT_KV_DTYPES or cache.is_quantised,
        f"arena of {cache.keys.dtype}; rows are float32, bfloat16, float16 or int8",
    )
    if backend_for(q) == "torch":
        return rope_and_write_kv_reference(q, k, v, cos, sin, rows, cache)
    return _rope_and_write_kv_triton(q, k, v, cos, sin, rows, cache)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
