"""SwiGLU against its formula in float64."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.swiglu import swiglu


@pytest.mark.parametrize(("num_tokens", "inner"), [(1, 1), (3, 33), (17, 1536)])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.bfloat16, 1.6e-2)])
def test_swiglu_gates_the_second_half_by_the_first(num_tokens, inner, dtype, rtol):
    generator = torch.Generator().manual_seed(0)
    gate_up = (torch.randn(num_tokens, 2 * inner, generator=generator) * 3).to(dtype)
    gate, up = gate_up.double()[:, :inner], gate_up.double()[:, inner:]
    expected = gate / (1 + torch.exp(-gate)) * up
    out = swiglu(gate_up)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 2, 4)])
def test_a_shape_without_two_halves_is_refused(shape):
    with pytest.raises(KernelArgumentError, match="2I"):
        swiglu(torch.zeros(shape))
