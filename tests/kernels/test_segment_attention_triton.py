"""The Triton attention against float64: mixed batches, windows, int8 rows, splits."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.checks import LONG_DECODE, MIXED, VERIFY, AttentionCase, check_attention

FLOAT, BRAIN, HALF, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8


@pytest.mark.parametrize(
    "group, head_dim, dtype, kv_dtype, window",
    [
        (1, 32, FLOAT, FLOAT, None),
        (3, 40, BRAIN, BRAIN, None),
        (3, 32, FLOAT, INT8, 5),
        (4, 64, HALF, HALF, 9),
        (8, 32, BRAIN, INT8, None),
        (20, 32, FLOAT, FLOAT, 1),
    ],
)
@pytest.mark.parametrize("case", [MIXED, VERIFY], ids=["mixed", "verify"])
def test_tokens_see_the_rows_of_their_sequence_by_position(
    case: AttentionCase,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    window: int | None,
) -> None:
    check_attention("cpu", case, (2 * group, 2, head_dim), dtype, kv_dtype, window)


@pytest.mark.parametrize(
    "dtype, kv_dtype, window",
    [(FLOAT, FLOAT, None), (BRAIN, INT8, None), (FLOAT, FLOAT, 300)],
    ids=str,
)
def test_splitting_a_long_cache_between_programs_changes_nothing(
    dtype: torch.dtype, kv_dtype: torch.dtype, window: int | None
) -> None:
    check_attention("cpu", LONG_DECODE, (3, 1, 32), dtype, kv_dtype, window)
