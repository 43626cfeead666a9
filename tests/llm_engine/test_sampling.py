from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernels.sample import TOP_P_OFF
from llm_engine.events import SamplingParams
from llm_engine.sampling import (
    BadSamplingParams,
    NonFiniteLogits,
    SampleRow,
    check_sampling,
    row_params,
    sample_rows,
)

WARM = SamplingParams(temperature=0.8, top_p=0.9)
CPU = torch.device("cpu")


def test_noise_depends_on_seed_turn_and_index_and_on_nothing_else() -> None:
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(0)).expand(40, -1)
    rows = [SampleRow(WARM, seed=3, turn=2, reply_index=n) for n in range(40)]
    tokens = [row.token_id for row in sample_rows(logits, rows)]
    again = sample_rows(logits[:20].flip(0), rows[:20][::-1])
    assert [row.token_id for row in again] == tokens[:20][::-1]
    for other in ({"seed": 4}, {"turn": 3}):
        changed = sample_rows(logits, [replace(row, **other) for row in rows])
        assert [row.token_id for row in changed] != tokens


def test_rows_of_different_settings_share_a_batch() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    settings = (SamplingParams(), WARM, SamplingParams(repetition_penalty=1.5))
    rows = [SampleRow(p, 0, 0, n, preceding=(4, 5)) for n, p in enumerate(settings)]
    together = sample_rows(logits, rows)
    alone = [sample_rows(logits[n : n + 1], [row])[0] for n, row in enumerate(rows)]
    assert together == alone
    assert together[0].token_id == int(logits[0].argmax())


def test_verification_stops_at_the_first_wrong_token() -> None:
    logits = torch.eye(4)
    rows = [
        SampleRow(SamplingParams(), 0, 0, index, draft=draft)
        for index, draft in enumerate((0, 1, 3, None))
    ]
    assert [row.is_accepted for row in sample_rows(logits, rows)] == [True, True, False, False]


def test_the_tie_margin_counts_edges_of_truncation() -> None:
    logits = torch.tensor([[5.0, 3.0, 3.0 - 1e-4, 0.0]])
    (row,) = sample_rows(logits, [SampleRow(SamplingParams(temperature=1.0, top_k=2), 0, 0, 0)])
    assert row.tie_margin == pytest.approx(1e-4, rel=0.01)
    assert row.margin > row.tie_margin


def test_settings_reach_the_kernel_in_its_units() -> None:
    rows = [
        SampleRow(SamplingParams(temperature=0.5, top_p=0.75, min_p=0.1, top_k=7), 1, 2, 3),
        SampleRow(SamplingParams(repetition_penalty=1.25), 1, 2, 4, preceding=(8, 9)),
    ]
    params = row_params(rows, CPU)
    assert not params.is_greedy
    assert params.temperature.tolist() == [0.5, 0.0]
    assert params.top_p.tolist() == [TOP_P_OFF * 3 // 4, TOP_P_OFF]
    assert params.top_k.tolist() == [7, 0]
    assert params.log_min_p.tolist() == [pytest.approx(math.log(0.1)), -math.inf]
    assert params.penalty.tolist() == [1.0, 1.25]
    assert (params.preceding_ids.tolist(), params.preceding_start.tolist()) == ([8, 9], [0, 0, 2])


def test_a_top_p_near_zero_still_keeps_the_best_token() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    rows = [SampleRow(SamplingParams(temperature=2.0, top_p=1e-9), 0, 0, 0)]
    assert sample_rows(logits, rows)[0].token_id == int(logits.argmax())


def test_logits_that_are_no_numbers_are_refused_with_their_row() -> None:
    logits = torch.zeros(2, 10)
    logits[1, 4] = math.nan
    rows = [SampleRow(SamplingParams(), 0, 0, n) for n in range(2)]
    with pytest.raises(NonFiniteLogits, match="row 1"):
        sample_rows(logits, rows)


def test_a_temperature_too_low_to_divide_by_is_greedy() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    (row,) = sample_rows(logits, [SampleRow(SamplingParams(temperature=1e-38), 0, 0, 0)])
    assert (row.token_id, row.margin) == (1, 1.0)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (SamplingParams(temperature=-0.1), "temperature is -0.1"),
        (SamplingParams(temperature=math.nan), "temperature is nan"),
        (SamplingParams(temperature=math.inf), "temperature is inf"),
        (SamplingParams(top_k=-1), "top_k is -1"),
        (SamplingParams(top_p=0.0), "top_p is 0.0"),
        (SamplingParams(top_p=1.01), "top_p is 1.01"),
        (SamplingParams(min_p=-0.5), "min_p is -0.5"),
        (SamplingParams(repetition_penalty=0.0), "repetition_penalty is 0.0"),
        (SamplingParams(repetition_penalty=1e-30), "repetition_penalty is 1e-30"),
        (SamplingParams(max_tokens=0), "max_tokens is 0"),
    ],
)
def test_settings_out_of_range_are_named(params: SamplingParams, named: str) -> None:
    with pytest.raises(BadSamplingParams, match=named):
        check_sampling(params)
