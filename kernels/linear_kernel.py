"""The Triton side of `linear.py`: one token, a few tokens, many tokens.

Up to 16 tokens what counts is how fast weights are read and unpacked, beyond the matrix rate. Dense
weights have a kernel for one token only: with more cuBLAS is as fast. Legend: T tokens, N outputs,
K inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.launch import launch, wait_for_inputs
from kernels.widening import float_of_int8

FEW_TOKENS = 16  # up to here every program takes all tokens, and each weight is unpacked once


class Stored(NamedTuple):
    """A matrix as it lies in memory; `bits` 0: dense, in the activations' dtype."""

    bits: int
    data: torch.Tensor  # [N, K], of int4 [N, K/2]
    scale: torch.Tensor | None = None  # [N, K/32]
    minimum: torch.Tensor | None = None  # [N, K/32], int4 only


@triton.jit
def _effective(q, scale, minimum, dtype: tl.constexpr):
    """q[N, G, W] float32 times scale[N, G] plus minimum[N, G] (or None), rounded to `dtype`."""
    w = q * scale.to(tl.float32)[:, :, None]
    if minimum is not None:
        w += minimum.to(tl.float32)[:, :, None]
    return w.to(dtype)


@triton.jit
def _scaled_int8(q, scale, dtype: tl.constexpr):
    """`_effective(float_of_int8(q), scale, None, dtype)`, an instruction cheaper.

    q's byte becomes 2^15 + 128 + q. 32896 times a float16 scale is exact, and so is the fused sum.
    """
    byte = q.to(tl.uint8, bitcast=True).to(tl.int32)
    lifted = ((byte << 8) ^ 0x47008000).to(tl.float32, bitcast=True)
    wide = scale.to(tl.float32)
    return (lifted * wide[:, :, None] - (32896.0 * wide)[:, :, None]).to(dtype)


@triton.jit
def _vector_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    num_outputs,
    num_inputs,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (blocks of N): dense weights times one token. The next tile is loaded while one is
    multiplied, and the first is under way before the token is there.
    """
    output = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [N]
    column = tl.arange(0, BLOCK_K)
    is_output = output < num_outputs
    w_at = w_ptr + output[:, None] * num_inputs + column[None, :]
    w = tl.load(w_at, mask=is_output[:, None] & (column < num_inputs)[None, :], other=0.0)
    wait_for_inputs(OVERLAP)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        x = tl.load(x_ptr + first + column, mask=first + column < num_inputs, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
        following = first + BLOCK_K
        exists = is_output[:, None] & (following + column < num_inputs)[None, :]
        w = tl.load(w_at + following, mask=exists, other=0.0)
    out = tl.sum(acc, 1)
    if bias_ptr is not None:
        out += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out_ptr + output, out.to(out_ptr.dtype.element_ty), mask=is_output)


@triton.jit(do_not_specialize=["num_tokens"])
def _slices_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    minimum_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    num_inputs,
    BITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SLICES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (blocks of N): the product with up to BLOCK_T tokens. Each warp multiplies its own slice
    of K, BLOCK_G groups at a time, so that none unpacks what another unpacks too. IS_WHOLE: the
    slices fill K.

    The weights are the left operand (out^T = w x^T), so that few tokens pad the narrow side.
    """
    WIDTH: tl.constexpr = 32 if BITS == 8 else 16
    STORED: tl.constexpr = BLOCK_G * WIDTH
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    output = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, BLOCK_T)
    is_output = output < num_outputs
    is_token = token < num_tokens
    num_groups = num_inputs // 32
    slice_group = tl.arange(0, SLICES) * BLOCK_G  # [S]
    group = slice_group[:, None] + tl.arange(0, BLOCK_G)[None, :]  # [S, G]
    stored = tl.arange(0, STORED)
    byte = slice_group[:, None] * WIDTH + stored[None, :]  # [S, B]
    column = slice_group[:, None] * 32 + (stored // WIDTH * 32 + stored % WIDTH)[None, :]
    row_bytes = num_groups * WIDTH
    group_at = output[None, :, None] * num_groups + group[:, None, :]  # [S, N, G]
    q_at = q_ptr + output[None, :, None] * row_bytes + byte[:, None, :]  # [S, N, B]
    x_at = x_ptr + token[None, None, :] * num_inputs + column[:, :, None]  # [S, B, T]
    wait_for_inputs(OVERLAP)
    acc = tl.zeros((SLICES, BLOCK_N, BLOCK_T), tl.float32)
    for first in range(0, num_groups, SLICES * BLOCK_G):
        has_byte = IS_WHOLE | (first * WIDTH + byte < row_bytes)
        has_group = is_output[None, :, None] & (IS_WHOLE | (first + group < num_groups))[:, None, :]
        q_mask = is_output[None, :, None] & has_byte[:, None, :]
        q = tl.load(q_at + first * WIDTH, mask=q_mask, other=0)
        q = q.reshape(SLICES * BLOCK_N, BLOCK_G, WIDTH)
        scale = tl.load(scale_ptr + group_at + first, mask=has_group, other=0.0)
        scale = scale.reshape(SLICES * BLOCK_N, BLOCK_G)
        x_mask = is_token[None, None, :] & has_byte[:, :, None]
        x = tl.load(x_at + first * 32, mask=x_mask, other=0.0)
        if BITS == 8:
            w = _scaled_int8(q, scale, dtype)
            acc = tl.dot(w.reshape(SLICES, BLOCK_N, STORED), x, acc)
        else:
            minimum = tl.load(minimum_ptr + group_at + first, mask=has_group, other=0.0)
            minimum = minimum.reshape(SLICES * BLOCK_N, BLOCK_G)
            w = _effective((q & 15).to(tl.float32), scale, minimum, dtype)
            acc = tl.dot(w.reshape(SLICES, BLOCK_N, STORED), x, acc)
            x = tl.load(x_at + first * 32 + 16, mask=x_mask, other=0.0)
            w = _effective((q >> 4).to(tl.float32), scale, minimum, dtype)
            acc = tl.dot(w.reshape(SLICES, BLOCK_N, STORED), x, acc)
    out = tl.sum(acc, 0)  # [N, T]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out_ptr + token[None, :] * num_outputs + output[:, None],
        out.to(dtype),
        mask=is_output[:, None] & is_token[None, :],
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _tiles_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    minimum_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    num_inputs,
    BITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (blocks of N, blocks of T); K is walked BLOCK_G groups of 32 at a time.

    The weights are the left operand (out^T = w x^T), so that a single token pads the narrow side of
    the product. An int4 byte holds elements j and j + 16 of its group: low and high halves are two
    products over the matching halves of x, and nothing is shuffled.
    """
    output = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [N]
    token = tl.program_id(1).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)  # [T]
    is_output = output < num_outputs
    is_token = token < num_tokens
    num_groups = num_inputs // 32
    WIDTH: tl.constexpr = 32 if BITS == 8 else 16  # stored elements (bytes) of a group
    stored = tl.arange(0, BLOCK_G * WIDTH)
    group = tl.arange(0, BLOCK_G)
    column = stored // WIDTH * 32 + stored % WIDTH  # of x
    row_bytes = num_groups * WIDTH
    wait_for_inputs(OVERLAP)
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for first_group in range(0, num_groups, BLOCK_G):
        has_group = is_output[:, None] & (first_group + group < num_groups)[None, :]
        has_byte = first_group * WIDTH + stored < row_bytes
        q = tl.load(
            q_ptr + output[:, None] * row_bytes + (first_group * WIDTH + stored)[None, :],
            mask=is_output[:, None] & has_byte[None, :],
            other=0,
        )
        group_at = output[:, None] * num_groups + (first_group + group)[None, :]
        scale = tl.load(scale_ptr + group_at, mask=has_group, other=0.0)
        q = q.reshape(BLOCK_N, BLOCK_G, WIDTH)
        x_at = x_ptr + token[None, :] * num_inputs + (first_group * 32 + column)[:, None]
        x_mask = is_token[None, :] & has_byte[:, None]
        x = tl.load(x_at, mask=x_mask, other=0.0)
        if BITS == 8:
            w = _effective(float_of_int8(q), scale, None, x.dtype)
            acc = tl.dot(w.reshape(BLOCK_N, BLOCK_G * WIDTH), x, acc, input_precision="ieee")
        else:
            minimum = tl.load(minimum_ptr + group_at, mask=has_group, other=0.0)
            w = _effective((q & 15).to(tl.float32), scale, minimum, x.dtype)
            acc = tl.dot(w.reshape(BLOCK_N, BLOCK_G * WIDTH), x, acc, input_precision="ieee")
            x = tl.load(x_at + 16, mask=x_mask, other=0.0)
            w = _effective((q >> 4).to(tl.float32), scale, minimum, x.dtype)
            acc = tl.dot(w.reshape(BLOCK_N, BLOCK_G * WIDTH), x, acc, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out_ptr + token[None, :] * num_outputs + output[:, None],
        acc.to(out_ptr.dtype.element_ty),
        mask=is_output[:, None] & is_token[None, :],
    )


def takes_dense(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether `multiply` has a kernel for these dense weights: one token's."""
    return x.shape[0] == 1 and w.dtype == x.dtype and w.is_contiguous()


def multiply(x: torch.Tensor, weight: Stored, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, K] times the weight's transpose -> [T, N]."""
    num_tokens, num_inputs = x.shape
    num_outputs = weight.data.shape[0]
    x = x.contiguous()
    out = torch.empty(num_tokens, num_outputs, dtype=x.dtype, device=x.device)
    if weight.bits == 0:
        block_n, block_k, num_warps = _vector_sizes(num_outputs, num_inputs)
        launch(
            _vector_kernel,
            (triton.cdiv(num_outputs, block_n),),
            *(x, weight.data, bias, out),
            num_outputs,
            num_inputs,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=num_warps,
        )
        return out
    tensors = (x, weight.data, weight.scale, weight.minimum, bias, out)
    if num_tokens <= FEW_TOKENS and x.dtype != torch.float32:
        _start_slices(tensors, num_tokens, num_outputs, num_inputs, weight.bits)
    else:
        _start_tiles(tensors, num_tokens, num_outputs, num_inputs, weight.bits)
    return out


def _vector_sizes(num_outputs: int, num_inputs: int) -> tuple[int, int, int]:
    """Outputs of a program, inputs at a time, warps: the fastest in the decode step of 1B and 8B
    shapes on an H200."""
    if num_inputs > 4096:
        return 1, 1024, 4
    return 2, 1024, 4 if num_outputs <= 2048 else 2


Tensors = tuple[torch.Tensor | None, ...]


def _start_slices(
    tensors: Tensors, num_tokens: int, num_outputs: int, num_inputs: int, bits: int
) -> None:
    # few outputs are few programs: more warps share the walk along K
    is_short = num_outputs <= 4096
    slices, groups = (8, 8) if is_short else (4, 4)
    block_n = 32 if bits == 4 and not is_short else 16
    launch(
        _slices_kernel,
        (triton.cdiv(num_outputs, block_n),),
        *tensors,
        num_tokens,
        num_outputs,
        num_inputs,
        BITS=bits,
        BLOCK_T=8 if num_tokens <= 8 else 16,
        BLOCK_N=block_n,
        BLOCK_G=groups,
        SLICES=slices,
        IS_WHOLE=num_inputs % (slices * groups * 32) == 0,
        num_warps=slices,
        num_stages=2 if is_short else 3,
    )


def _start_tiles(
    tensors: Tensors, num_tokens: int, num_outputs: int, num_inputs: int, bits: int
) -> None:
    few = num_tokens <= FEW_TOKENS  # float32 only
    block_t, block_n, num_warps = (16, 16, 4) if few else (64, 128, 8)
    launch(
        _tiles_kernel,
        (triton.cdiv(num_outputs, block_n), triton.cdiv(num_tokens, block_t)),
        *tensors,
        num_tokens,
        num_outputs,
        num_inputs,
        BITS=bits,
        BLOCK_T=block_t,
        BLOCK_N=block_n,
        BLOCK_G=8 if few else 2,
        num_warps=num_warps,
        num_stages=4 if few else 3,
    )
