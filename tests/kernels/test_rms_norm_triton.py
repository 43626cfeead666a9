"""The Triton RMSNorm against float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.checks import check_rms_norm

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("has_residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("num_tokens, hidden", [(1, 64), (3, 100), (2, 1), (2, 2051)])
def test_norm_and_sum_agree_with_float64(
    num_tokens: int, hidden: int, dtype: torch.dtype, has_residual: bool
) -> None:
    check_rms_norm("cpu", num_tokens, hidden, dtype, has_residual)


def test_a_batch_without_tokens_starts_no_program() -> None:
    check_rms_norm("cpu", 0, 64, torch.float32, True)
