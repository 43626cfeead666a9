"""The Triton products against float64: one token, a few, many; dense, int8 and int4 weights."""

from __future__ import annotations

import pytest
import torch

from kernels.linear_kernel import takes_dense
from tests.kernels.checks import check_linear


@pytest.mark.parametrize("bits", [0, 8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 32), (1, 9, 96), (1, 17, 2080)], ids=str)
def test_one_token_agrees_with_float64(
    sizes: tuple[int, int, int], dtype: torch.dtype, bits: int
) -> None:
    check_linear("cpu", sizes, dtype, bits, has_bias=sizes[1] == 9)


def test_dense_weights_are_taken_for_one_token_of_their_own_dtype() -> None:
    w = torch.ones(3, 64)
    assert takes_dense(torch.ones(1, 64), w)
    assert not takes_dense(torch.ones(2, 64), w)
    assert not takes_dense(torch.ones(1, 64).bfloat16(), w)
    assert not takes_dense(torch.ones(1, 64), torch.ones(64, 3).T)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 1, 32), (5, 33, 288), (16, 17, 1056)], ids=str)
def test_few_tokens_agree_with_float64(
    sizes: tuple[int, int, int], dtype: torch.dtype, bits: int
) -> None:
    check_linear("cpu", sizes, dtype, bits, has_bias=sizes[0] == 5)


@pytest.mark.parametrize("bits", [0, 8, 4])
@pytest.mark.parametrize("sizes", [(1, 3, 4128), (3, 4100, 64), (2, 5, 2048)], ids=str)
def test_sizes_that_are_tiled_otherwise_agree_with_float64(
    sizes: tuple[int, int, int], bits: int
) -> None:
    """Many inputs, many outputs, and inputs that the slices fill."""
    if bits or sizes[0] == 1:
        check_linear("cpu", sizes, torch.float16, bits, has_bias=sizes[0] == 3)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_many_tokens_agree_with_float64(dtype: torch.dtype, bits: int) -> None:
    check_linear("cpu", (67, 130, 96), dtype, bits, has_bias=True)
