"""Panels keep every weight bit for bit."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.linear import DenseWeight, Int8Weight, quantise_int4, quantise_int8
from kernels.panels import LANES, can_pack, pack

MAKERS = {"dense": DenseWeight, "int8": quantise_int8, "int4": quantise_int4}


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (37, 96)])
def test_unpacking_gives_back_what_was_packed(kind, shape):
    weight = MAKERS[kind](random(*shape), random(shape[0]))
    panels = pack(weight)
    again = panels.unpack()
    assert type(again) is type(weight)
    assert torch.equal(again.dense(), weight.dense())
    assert torch.equal(again.bias, weight.bias)
    assert panels.data.shape[0] == -(-shape[0] // LANES)


@pytest.mark.parametrize("kind", MAKERS)
def test_rows_are_rows_of_the_weight(kind):
    weight = MAKERS[kind](random(37, 64))
    index = torch.tensor([36, 0, 15, 16, 0])
    assert torch.equal(pack(weight).rows(index), weight.dense()[index])


def test_the_whole_range_of_int8_survives():
    q = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).reshape(8, 32)
    weight = Int8Weight(q, torch.full((8, 1), 0.5).half())
    assert torch.equal(pack(weight).unpack().q, q)


@pytest.mark.parametrize(
    "weight",
    [
        DenseWeight(torch.zeros(4, 33)),
        DenseWeight(torch.zeros(4, 32).bfloat16()),
        quantise_int8(random(2, 32) * 1e9),  # scales beyond float16
    ],
)
def test_weights_without_a_panel_form_are_refused(weight):
    assert not can_pack(weight)
    with pytest.raises(KernelArgumentError, match="no panel form"):
        pack(weight)
