"""Products of panels: every number of tokens gives every token the same bits."""

import numpy as np
import pytest
import torch

from kernels.cpu_kernels import pair_product, panel_product
from kernels.linear import DenseWeight, quantise_int4, quantise_int8
from kernels.panels import LANES, pack

MAKERS = {"dense": DenseWeight, "int8": quantise_int8, "int4": quantise_int4}
TOKENS = (1, 2, 3, 4, 5, 6, 7, 12, 23)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(panels, x):
    """x[M, K] times the first two panels, by the product for M tokens; outputs begin as NaN."""
    groups, size = panels.num_inputs // 32, panels.data.shape[1]
    y = np.full((len(x), 2 * LANES), np.nan, dtype=np.float32)
    tile = np.zeros(panels.num_inputs * LANES, dtype=np.float32)
    pair_product(
        panels.kind, x.data_ptr(), panels.num_inputs * 4, len(x), groups, panels.data.data_ptr(),
        size, y.ctypes.data, y.shape[1] * 4, tile.ctypes.data,
    )  # fmt: skip
    return torch.from_numpy(y)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("num_inputs", [32, 160])
def test_products_match_float64_and_do_not_depend_on_the_batch(kind, num_inputs):
    weight = MAKERS[kind](random(2 * LANES, num_inputs, seed=1))
    panels, x = pack(weight), random(max(TOKENS), num_inputs)
    expected = x.double() @ weight.dense().double().T
    whole = product(panels, x)
    torch.testing.assert_close(whole.double(), expected, rtol=1e-4, atol=1e-5)
    for num_tokens in TOKENS:
        part = product(panels, x[:num_tokens].contiguous())
        assert torch.equal(part, whole[:num_tokens]), num_tokens


def test_a_single_panel_gives_what_it_gives_in_a_pair():
    weight = quantise_int4(random(2 * LANES, 96))
    panels, x = pack(weight), random(1, 96, seed=2)
    y = np.full((1, LANES), np.nan, dtype=np.float32)
    tile = np.zeros(96 * LANES, dtype=np.float32)
    panel_product(
        panels.kind, x.data_ptr(), 96 * 4, 1, 3, panels.data.data_ptr(), y.ctypes.data, LANES * 4,
        tile.ctypes.data,
    )  # fmt: skip
    assert torch.equal(torch.from_numpy(y), product(panels, x)[:, :LANES])
