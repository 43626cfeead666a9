"""The Triton rotation and K/V write against the torch reference, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.checks import check_rope, check_rows_beyond_int32


@pytest.mark.parametrize(
    "dtype, kv_dtype",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.int8),
        (torch.bfloat16, torch.int8),
    ],
    ids=str,
)
@pytest.mark.parametrize("heads", [(1, 1, 2), (6, 2, 40), (4, 4, 64)], ids=str)
def test_rotation_and_rows_equal_the_reference(
    heads: tuple[int, int, int], dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    check_rope("cpu", heads, dtype, kv_dtype)


def test_rows_beyond_two_to_the_31_elements_are_written_and_read() -> None:
    check_rows_beyond_int32("cpu")
