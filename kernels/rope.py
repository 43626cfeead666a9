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
from kernels.launch import launch


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
def store_row(
    data_ptr, scale_ptr, slot, first, second, dim, exists, HALF: tl.constexpr, INT8: tl.constexpr
):
    """Write one head of a row, given as two halves in float32; int8 as `quantise_rows` does."""
    if INT8:
        peak = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        scale = tl.div_rn(peak, 127.0)
        divisor = tl.where(scale > 0.0, scale, 1.0)
        # adding and taking away 1.5 x 2^23 rounds to the nearest integer, ties to even
        first = (tl.div_rn(first, divisor) + 12582912.0) - 12582912.0
        second = (tl.div_rn(second, divisor) + 12582912.0) - 12582912.0
        tl.store(scale_ptr + slot, scale)
    at = data_ptr + slot * (2 * HALF) + dim
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
    INT8: tl.constexpr,
):
    """Grid (T, Hq + Hkv): the first Hq programs of a token rotate a query head each, the others
    a key head, and write it and its value to the arena row.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK)
    exists = dim < HALF
    cos = tl.load(cos_ptr + token * HALF + dim, mask=exists, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + dim, mask=exists, other=0.0)
    if head < NUM_HEADS:
        source = q_ptr + token * q_stride + head * (2 * HALF) + dim
    else:
        source = k_ptr + token * k_stride + (head - NUM_HEADS) * (2 * HALF) + dim
    first = tl.load(source, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=exists, other=0.0).to(tl.float32)
    # rounded to the activations' dtype, whatever the arena's is
    turned_first = (first * cos - second * sin).to(q_ptr.dtype.element_ty)
    turned_second = (second * cos + first * sin).to(q_ptr.dtype.element_ty)
    if head < NUM_HEADS:
        target = out_ptr + (token * NUM_HEADS + head) * (2 * HALF) + dim
        tl.store(target, turned_first, mask=exists)
        tl.store(target + HALF, turned_second, mask=exists)
    else:
        kv_head = head - NUM_HEADS
        slot = tl.load(rows_ptr + token) * NUM_KV_HEADS + kv_head
        store_row(
            keys_ptr,
            key_scales_ptr,
            slot,
            turned_first.to(tl.float32),
            turned_second.to(tl.float32),
            dim,
            exists,
            HALF,
            INT8,
        )
        value = v_ptr + token * v_stride + kv_head * (2 * HALF) + dim
        store_row(
            values_ptr,
            value_scales_ptr,
            slot,
            tl.load(value, mask=exists, other=0.0).to(tl.float32),
            tl.load(value + HALF, mask=exists, other=0.0).to(tl.float32),
            dim,
            exists,
            HALF,
            INT8,
        )


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
    launch(
        _rope_and_write_kv_kernel,
        (num_tokens, num_heads + num_kv_heads),
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
        BLOCK=triton.next_power_of_2(head_dim // 2),
        INT8=cache.is_quantised,
        num_warps=1,
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
        f"arena of {cache.keys.dtype} without scales",
    )
    if backend_for(q) == "torch":
        return rope_and_write_kv_reference(q, k, v, cos, sin, rows, cache)
    return _rope_and_write_kv_triton(q, k, v, cos, sin, rows, cache)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
