"""The Triton SwiGLU against float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.checks import check_swiglu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_tokens, intermediate", [(1, 1), (3, 100), (2, 1025), (0, 64)])
def test_gated_activation_agrees_with_float64(
    num_tokens: int, intermediate: int, dtype: torch.dtype
) -> None:
    check_swiglu("cpu", num_tokens, intermediate, dtype)
