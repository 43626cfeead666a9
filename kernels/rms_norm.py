"""RMSNorm with the residual add that precedes it (Zhang & Sennrich 2019, eq. 4).

Legend: T tokens, H hidden size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.launch import launch, wait_for_inputs


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch reference. The sum is rounded to x's dtype: it is what the residual stream carries."""
    total = x if residual is None else x + residual
    wide = total.float()
    variance = wide.pow(2).mean(dim=-1, keepdim=True)
    normed = (wide * torch.rsqrt(variance + eps)).to(x.dtype)
    return weight * normed, total


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    total_ptr,
    hidden,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_H: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program per token; the row stays in registers between the sum and the scaling."""
    row = tl.program_id(0).to(tl.int64) * hidden
    column = tl.arange(0, BLOCK_H)
    exists = column < hidden
    weight = tl.load(weight_ptr + column, mask=exists, other=0.0).to(tl.float32)
    wait_for_inputs(OVERLAP)
    total = tl.load(x_ptr + row + column, mask=exists, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row + column, mask=exists, other=0.0)
        total = (total.to(tl.float32) + residual.to(tl.float32)).to(total.dtype)
        tl.store(total_ptr + row + column, total, mask=exists)
    wide = total.to(tl.float32)
    mean_square = tl.sum(wide * wide, 0) / hidden
    # rounded before the weight is applied, as the reference does
    normed = (wide * tl.rsqrt(mean_square + eps)).to(total.dtype).to(tl.float32)
    tl.store(y_ptr + row + column, (normed * weight).to(y_ptr.dtype.element_ty), mask=exists)


def _rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, hidden = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    block = triton.next_power_of_2(hidden)
    launch(
        _rms_norm_kernel,
        (num_tokens,),
        x,
        None if residual is None else residual.contiguous(),
        weight.contiguous(),
        y,
        total,
        hidden,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK_H=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return y, total


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T,H], weight[H], residual[T,H] or None -> (y[T,H], sum[T,H]).

    sum = x + residual (x itself without a residual); y = sum / sqrt(mean(sum^2) + eps) * weight,
    with the statistics in float32 and y rounded to x's dtype before the weight is applied.

    Raises:
        KernelArgumentError: shapes or dtypes do not agree.
    """
    require(x.dim() == 2, f"x must be [T, H], got shape {tuple(x.shape)}")
    require(
        weight.shape == x.shape[1:],
        f"weight must have shape ({x.shape[1]},), got {tuple(weight.shape)}",
    )
    require(weight.dtype == x.dtype, f"weight is {weight.dtype}, x is {x.dtype}")
    if residual is not None:
        require(
            residual.shape == x.shape and residual.dtype == x.dtype,
            f"residual must be {x.dtype} {tuple(x.shape)}, "
            f"got {residual.dtype} {tuple(residual.shape)}",
        )
    if backend_for(x) == "torch":
        return rms_norm_reference(x, weight, eps, residual)
    return _rms_norm_triton(x, weight, eps, residual)
