"""SwiGLU: the gated activation of the feed-forward layer (Shazeer 2020, eq. 6).

Legend: T tokens, I intermediate size.
"""

from __future__ import annotations

import torch

from kernels.dispatch import backend_for
from kernels.errors import KernelArgumentError, require


def swiglu_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Torch reference."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] -> silu(gate_up[:, :I]) * gate_up[:, I:], shape [T, I].

    Raises:
        KernelArgumentError: gate_up is not [T, 2I].
    """
    require(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0,
        f"gate_up must be [T, 2I], got shape {tuple(gate_up.shape)}",
    )
    if backend_for(gate_up) == "torch":
        return swiglu_reference(gate_up)
    raise KernelArgumentError(f"swiglu has no kernel for {gate_up.device}")
