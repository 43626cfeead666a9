"""SwiGLU: the gated activation of the feed-forward layer (Shazeer 2020, eq. 6).

Legend: T tokens, I intermediate size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.launch import launch, wait_for_inputs


def swiglu_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Torch reference."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@triton.jit
def _swiglu_kernel(gate_up_ptr, out_ptr, intermediate, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Grid (tokens, blocks of the intermediate size)."""
    wait_for_inputs(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < intermediate
    gate_at = gate_up_ptr + token * 2 * intermediate + column
    gate = tl.load(gate_at, mask=exists, other=0.0)
    up = tl.load(gate_at + intermediate, mask=exists, other=0.0)
    wide = gate.to(tl.float32)
    # the reference rounds silu(gate) to the dtype before the product
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    out = (silu * up.to(tl.float32)).to(gate.dtype)
    tl.store(out_ptr + token * intermediate + column, out, mask=exists)


SWIGLU_BLOCK = 1024


def _swiglu_triton(gate_up: torch.Tensor) -> torch.Tensor:
    num_tokens, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, intermediate)
    grid = (num_tokens, triton.cdiv(intermediate, SWIGLU_BLOCK))
    launch(
        _swiglu_kernel,
        grid,
        gate_up.contiguous(),
        out,
        intermediate,
        BLOCK=SWIGLU_BLOCK,
        num_warps=4,
    )
    return out


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
    return _swiglu_triton(gate_up)
