"""Every int8 becomes the same number in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.widening import float_of_int8


@triton.jit
def _widen_kernel(q_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, float_of_int8(tl.load(q_ptr + at)))


def test_all_256_values_are_kept() -> None:
    q = torch.arange(-128, 128).to(torch.int8)
    out = torch.full((256,), torch.nan)
    _widen_kernel[(1,)](q, out, BLOCK=256)
    assert torch.equal(out, q.float())
