"""The Triton sampler against the CPU's: the same tokens, noise and weights to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.noise import gumbel, row_key, weights
from kernels.sample import SampleParams, sample_and_verify
from kernels.sample_kernel import device_tables, gumbel_noise, softmax_weights
from tests.kernels.checks import check_sample, triton_with_poisoned_outputs

CPU = torch.device("cpu")


@triton.jit
def _noise_kernel(ids_ptr, keys_ptr, table_ptr, out_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    token = tl.load(ids_ptr + index)
    noise = gumbel_noise(token, tl.load(keys_ptr), tl.load(keys_ptr + 1), table_ptr)
    tl.store(out_ptr + index, noise)


@triton.jit
def _weights_kernel(below_ptr, table_ptr, out_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out_ptr + index, softmax_weights(tl.load(below_ptr + index), table_ptr))


@pytest.mark.parametrize("position", [(0, 0, 0), (1, 2, 3), (2**63 - 1, 5, 1000)])
def test_gumbel_noise_is_the_cpus_bit_for_bit(position: tuple[int, int, int]) -> None:
    key = row_key(*position)
    ids = torch.arange(65536) * 3
    out = torch.full((65536,), torch.nan)
    _noise_kernel[(1,)](ids, torch.tensor(key), device_tables(CPU)[0], out, BLOCK=65536)
    assert np.array_equal(out.numpy(), gumbel(ids.numpy(), key))


def test_softmax_weights_are_the_cpus_bit_for_bit() -> None:
    below = -40 * torch.rand(65536)
    below[:4] = torch.tensor([0.0, -torch.inf, -16.7, -1e30])
    out = torch.full((65536,), -1)
    _weights_kernel[(1,)](below, device_tables(CPU)[1], out, BLOCK=65536)
    assert np.array_equal(out.numpy(), weights(below.numpy()))


@pytest.mark.parametrize("vocab", [1, 301, 1100])
def test_every_setting_picks_the_cpus_token(vocab: int) -> None:
    check_sample("cpu", vocab)


@pytest.mark.parametrize("vocab", [1, 1030])
def test_greedy_rows_pick_the_cpus_token(vocab: int) -> None:
    check_sample("cpu", vocab, is_greedy=True)


def test_a_row_that_holds_nan_has_no_margin() -> None:
    logits = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 0.0, 2.0]])
    ones, zeros = torch.ones(2), torch.zeros(3, dtype=torch.int64)
    keys = torch.zeros(2, 2, dtype=torch.int64)
    greedy = SampleParams(True, ones, zeros[:2], zeros[:2], ones, ones, keys, zeros[:0], zeros)
    with triton_with_poisoned_outputs():
        sampled = sample_and_verify(logits, torch.tensor([-1, -1]), greedy)
    assert sampled.margins.isnan().tolist() == [True, False]
    assert 0 <= int(sampled.tokens[0]) < 3
