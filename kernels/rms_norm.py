"""RMSNorm with the residual add that precedes it (Zhang & Sennrich 2019, eq. 4).

Legend: T tokens, H hidden size.
"""

from __future__ import annotations

import torch

from kernels.dispatch import backend_for
from kernels.errors import KernelArgumentError, require


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch reference. The sum is rounded to x's dtype: it is what the residual stream carries."""
    total = x if residual is None else x + residual
    wide = total.float()
    variance = wide.pow(2).mean(dim=-1, keepdim=True)
    normed = (wide * torch.rsqrt(variance + eps)).to(x.dtype)
    return weight * normed, total


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
    raise KernelArgumentError(f"rms_norm has no kernel for {x.device}")
