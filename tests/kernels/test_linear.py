"""Products with dense, int8 and int4 weights; what quantisation keeps and loses."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.linear import (
    DenseWeight,
    Int4Weight,
    Int8Weight,
    linear,
    quantise_int4,
    quantise_int8,
)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(kind, num_outputs, num_inputs, bias=None):
    w = random(num_outputs, num_inputs, seed=1)
    return {
        "dense": lambda: DenseWeight(w, bias),
        "int8": lambda: quantise_int8(w, bias),
        "int4": lambda: quantise_int4(w, bias),
    }[kind]()


@pytest.mark.parametrize("kind", ["dense", "int8", "int4"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 32), (3, 7, 96), (17, 65, 160)])
def test_linear_is_the_product_with_the_effective_weights(kind, with_bias, shape):
    num_tokens, num_outputs, num_inputs = shape
    bias = random(num_outputs, seed=2) if with_bias else None
    weight = make(kind, num_outputs, num_inputs, bias)
    x = random(num_tokens, num_inputs)
    expected = x.double() @ weight.dense().double().T
    if bias is not None:
        expected += bias.double()
    # float32 sums of K products: K ulps at most
    torch.testing.assert_close(linear(x, weight).double(), expected, rtol=1e-4, atol=1e-5)


def test_int8_weights_are_within_half_a_step():
    w = random(5, 96)
    weight = quantise_int8(w)
    step = weight.scale.float().repeat_interleave(32, dim=1)
    # 127 steps reach the largest value but for the scale's rounding to float16
    assert ((weight.dense() - w).abs() <= step * (0.5 + 127 * 2**-11)).all()


def test_int4_weights_are_within_half_a_step():
    w = random(5, 96)
    weight = quantise_int4(w)
    step = weight.scale.float().repeat_interleave(32, dim=1)
    slack = weight.minimum.float().abs().repeat_interleave(32, dim=1) * 2**-11
    assert ((weight.dense() - w).abs() <= step * (0.5 + 15 * 2**-11) + slack).all()


def test_values_on_the_grid_are_kept_exactly():
    q = torch.randint(0, 16, (3, 64), generator=torch.Generator().manual_seed(0)).float()
    q[:, [0, 32]], q[:, [1, 33]] = 0.0, 15.0  # every group uses its whole range
    w = q * 0.25 - 1.5
    assert torch.equal(quantise_int4(w).dense(), w)
    signed = torch.randint(-127, 128, (3, 64), generator=torch.Generator().manual_seed(1)).float()
    signed[:, [0, 32]] = 127.0
    assert torch.equal(quantise_int8(signed * 0.5).dense(), signed * 0.5)


def test_a_byte_holds_elements_sixteen_apart():
    packed = torch.zeros(1, 32, dtype=torch.uint8)
    packed[0, 16 + 3] = 5 | 9 << 4  # group 1, byte 3: elements 32 + 3 and 32 + 19
    weight = Int4Weight(packed, torch.ones(1, 2), torch.zeros(1, 2))
    dense = weight.dense()[0]
    assert dense[35] == 5 and dense[51] == 9 and dense.sum() == 14


def test_constant_and_zero_groups_do_not_divide_by_zero():
    for w in (torch.zeros(2, 32), torch.full((2, 32), -0.75)):
        assert torch.equal(quantise_int4(w).dense(), w)
        torch.testing.assert_close(quantise_int8(w).dense(), w, rtol=1e-3, atol=0)


def test_scales_beyond_float16_stay_float32():
    w = random(2, 32) * 1e9
    assert quantise_int8(w).scale.dtype == torch.float32
    four = quantise_int4(w)
    assert four.scale.dtype == four.minimum.dtype == torch.float32
    assert four.dense().isfinite().all()


@pytest.mark.parametrize("kind", ["dense", "int8", "int4"])
def test_rows_are_rows_of_the_effective_weights(kind):
    weight = make(kind, 9, 64)
    index = torch.tensor([8, 0, 0, 3])
    assert torch.equal(weight.rows(index), weight.dense()[index])


def test_bfloat16_activations_give_bfloat16():
    x = random(3, 64).bfloat16()
    weight = make("int4", 8, 64)
    out = linear(x, weight)
    assert out.dtype == torch.bfloat16
    expected = x.double() @ weight.dense().double().T
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=5e-2)


def test_weights_that_cannot_be_quantised_are_refused():
    with pytest.raises(KernelArgumentError, match="multiple of 32"):
        quantise_int8(torch.zeros(2, 33))
    with pytest.raises(KernelArgumentError, match="finite"):
        quantise_int4(torch.full((1, 32), torch.nan))


def test_arguments_that_do_not_fit_are_refused():
    weight = DenseWeight(torch.zeros(3, 4))
    with pytest.raises(KernelArgumentError, match=r"\(2, 5\)"):
        linear(torch.zeros(2, 5), weight)
    with pytest.raises(KernelArgumentError, match="floating"):
        linear(torch.zeros(2, 4, dtype=torch.int64), weight)
    with pytest.raises(KernelArgumentError, match="bias"):
        linear(torch.zeros(2, 4), DenseWeight(torch.zeros(3, 4), torch.zeros(2)))
    assert Int8Weight(torch.zeros(2, 32, dtype=torch.int8), torch.ones(2, 1)).shape == (2, 32)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"q": torch.zeros(2, 33, dtype=torch.int8)}, "q must be"),
        ({"q": torch.zeros(2, 64)}, "q must be"),
        ({"q": torch.zeros(64, 2, dtype=torch.int8).T}, "q must be contiguous"),
        ({"scale": torch.zeros(2, 1)}, "scale must be"),  # would be read past its end
        ({"scale": torch.zeros(2, 2, dtype=torch.float64)}, "scale must be"),
        ({"scale": torch.zeros(2, 2).T}, "scale must be contiguous"),
    ],
)
def test_int8_weights_whose_parts_do_not_fit_are_refused(parts, named):
    good = {"q": torch.zeros(2, 64, dtype=torch.int8), "scale": torch.zeros(2, 2)}
    Int8Weight(**good)
    with pytest.raises(KernelArgumentError, match=named):
        Int8Weight(**(good | parts))


def test_int4_weights_whose_parts_do_not_fit_are_refused():
    packed, scale = torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 2)
    Int4Weight(packed, scale, scale)
    for parts, named in (
        ((packed[:, :20], scale, scale), "packed must be"),
        ((packed, scale[:1], scale), "scale must be"),
        ((packed, scale, scale[:, :1]), "minimum must be"),
    ):
        with pytest.raises(KernelArgumentError, match=named):
            Int4Weight(*parts)
