"""Rotary position embedding and the write of K/V into arena rows (Su et al. 2021, eq. 34).

Pairs are split by halves (element d with element d + D/2), the convention of Hugging Face
checkpoints. Legend: T tokens, Hq query heads, Hkv key/value heads, D head dimension, R arena rows.
"""

from __future__ import annotations

import torch

from kernels.dispatch import backend_for
from kernels.errors import KernelArgumentError, require
from kernels.kv import FLOAT_KV_DTYPES, LayerKV, quantise_rows


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
    raise KernelArgumentError(f"rope_and_write_kv has no kernel for {q.device}")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
