"""The Triton products with int8 and int4 weights against float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.checks import check_linear


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 32), (5, 33, 288), (16, 17, 64)], ids=str)
def test_few_tokens_agree_with_float64(
    sizes: tuple[int, int, int], dtype: torch.dtype, bits: int
) -> None:
    check_linear("cpu", sizes, dtype, bits, has_bias=sizes[0] == 5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_tokens_agree_with_float64(dtype: torch.dtype, bits: int) -> None:
    check_linear("cpu", (67, 130, 96), dtype, bits, has_bias=True)
