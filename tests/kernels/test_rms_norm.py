"""RMSNorm against its formula in float64."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.rms_norm import rms_norm

EPS = 1e-5


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 1), (1, 64), (3, 100), (63, 577)])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 1.6e-2)])
def test_rms_norm_matches_its_formula(num_tokens, hidden, with_residual, dtype, rtol):
    # float32: order of summation; bfloat16: two roundings of 2^-8
    x, weight = random(num_tokens, hidden, dtype=dtype), random(hidden, dtype=dtype, seed=1)
    residual = random(num_tokens, hidden, dtype=dtype, seed=2) if with_residual else None
    y, total = rms_norm(x, weight, EPS, residual)
    expected_sum = x if residual is None else x + residual
    assert torch.equal(total, expected_sum)
    wide = expected_sum.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    torch.testing.assert_close(y.double(), expected, rtol=rtol, atol=rtol * 1e-2)


def test_the_arguments_are_not_changed():
    x, residual = random(2, 8), random(2, 8, seed=1)
    before = x.clone(), residual.clone()
    rms_norm(x, random(8), EPS, residual)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        (random(4), random(4), None, r"\[T, H\]"),
        (random(2, 4), random(5), None, r"\(4,\)"),
        (random(2, 4), random(4).double(), None, "float64"),
        (random(2, 4), random(4), random(3, 4), r"\(3, 4\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(x, weight, residual, message):
    with pytest.raises(KernelArgumentError, match=message):
        rms_norm(x, weight, EPS, residual)
