from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelArgumentError
from kernels.noise import gumbel, row_key, weights
from kernels.sample import (
    NO_DRAFT,
    TOP_P_OFF,
    Sampled,
    SampleParams,
    sample_and_verify,
)


def params(
    num_rows: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    penalty: float = 1.0,
    preceding: tuple[int, ...] = (),
    seed: int = 7,
) -> SampleParams:
    """The same settings for every row; row n is reply position n."""
    return SampleParams(
        is_greedy=temperature == 0 and penalty == 1,
        temperature=torch.full((num_rows,), temperature),
        top_k=torch.full((num_rows,), top_k, dtype=torch.int64),
        top_p=torch.full((num_rows,), round(top_p * TOP_P_OFF), dtype=torch.int64),
        log_min_p=torch.full((num_rows,), math.log(min_p) if min_p else -math.inf),
        penalty=torch.full((num_rows,), penalty),
        keys=torch.tensor([row_key(seed, 0, n) for n in range(num_rows)]).view(-1, 2),
        preceding_ids=torch.tensor(preceding * num_rows, dtype=torch.int64),
        preceding_start=torch.arange(num_rows + 1) * len(preceding),
    )


def sample(logits: torch.Tensor, draft: list[int] | None = None, **settings: float) -> Sampled:
    num_rows = logits.shape[0]
    drafted = torch.tensor(draft or [NO_DRAFT] * num_rows, dtype=torch.int64)
    return sample_and_verify(logits, drafted, params(num_rows, **settings))  # type: ignore[arg-type]


def kept_tokens(row: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Which tokens a truncation keeps, token by token from its definition; row: x [V]."""
    keep = np.ones(row.size, dtype=bool)
    best = row.max()
    if top_k:
        keep &= np.array([(row > x).sum() < top_k for x in row])
    if top_p < 1:
        mass = np.where(keep, weights(row - best), 0)
        limit = int(mass.sum()) * round(top_p * TOP_P_OFF) >> 20
        keep &= np.array([mass[row > x].sum() < limit for x in row]) | (row == best)
    if min_p:
        keep &= (row >= best + np.float32(math.log(min_p))) | (row == best)
    return keep


TRUNCATIONS = [
    (0, 1.0, 0.0),
    (5, 1.0, 0.0),
    (0, 0.9, 0.0),
    (0, 0.3, 0.0),
    (0, 1.0, 0.05),
    (40, 0.95, 0.02),
    (1, 1.0, 0.0),
    (0, 1e-6, 0.0),
    (500, 0.999, 0.0),
]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), TRUNCATIONS)
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.7])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_the_best_noised_of_the_kept_tokens_is_chosen(
    top_k: int, top_p: float, min_p: float, temperature: float, scale: float
) -> None:
    logits = (torch.randn(4, 501) * scale * 4).round() / 4  # with equal scores
    settings = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    result = sample(logits, **settings)
    for n, row in enumerate(logits.numpy()):
        x = row / np.float32(temperature)
        noised = x + gumbel(np.arange(x.size), row_key(7, 0, n))
        noised[~kept_tokens(x, top_k, top_p, min_p)] = -np.inf
        assert result.tokens[n] == noised.argmax()
        first, second = np.sort(noised)[:-3:-1].astype(np.float64)
        assert result.margins[n].item() == pytest.approx((first - second) * temperature, abs=1e-5)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), TRUNCATIONS[1:-1])
def test_truncation_keeps_what_transformers_keeps(top_k: int, top_p: float, min_p: float) -> None:
    """Not compared: a top-p so near 1 that the rounding of its running float sum decides."""
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    x = torch.randn(1, 400) * 3
    expected = TopKLogitsWarper(top_k)(None, x) if top_k else x
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    expected = MinPLogitsWarper(min_p)(None, expected) if min_p else expected
    kept = set(np.flatnonzero(np.isfinite(expected[0].numpy())))
    assert kept == set(np.flatnonzero(kept_tokens(x[0].numpy(), top_k, top_p, min_p)))
    settings = {"temperature": 1.0, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    seen = {int(sample(x, seed=seed, **settings).tokens) for seed in range(60)}
    assert seen <= kept


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_frequencies_are_those_of_softmax(temperature: float) -> None:
    row = torch.tensor([2.0, 1.5, 1.0, 0.0, 0.0, -1.0, -2.0, -3.0])
    num_draws = 5000
    tokens = sample(row.expand(num_draws, -1).contiguous(), temperature=temperature).tokens
    expected = torch.softmax(row.double() / temperature, dim=0) * num_draws
    counts = torch.bincount(tokens, minlength=row.numel()).double()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 28  # 7 degrees of freedom: p = 2e-4


def test_unlikely_tokens_come_as_often_as_they_should() -> None:
    """3,000 tokens that each have 1e-5 of the best one's mass have 2.9 % together."""
    row = torch.full((3001,), math.log(1e-5))
    row[1234] = 0.0
    num_draws = 1500
    tokens = sample(row.expand(num_draws, -1).contiguous(), temperature=1.0).tokens
    share = 0.03 / 1.03
    deviation = math.sqrt(num_draws * share * (1 - share))
    assert abs(int((tokens != 1234).sum()) - num_draws * share) < 4 * deviation


def test_temperature_zero_takes_the_best_and_of_equals_the_lowest_id() -> None:
    logits = torch.zeros(2, 77)
    logits[0, [9, 33]] = 2.0
    logits[1, 76] = 0.5
    result = sample(logits)
    assert result.tokens.tolist() == [9, 76]
    assert result.margins.tolist() == [0.0, 0.5]
    assert result.edge_margins.tolist() == [math.inf, math.inf]


def test_of_equal_noised_scores_the_lowest_id_wins() -> None:
    logits = torch.full((1, 200), 1e30)  # noise is lost in it
    assert sample(logits, temperature=1.0).tokens.tolist() == [0]


def test_a_vocabulary_of_one_token_has_an_infinite_margin() -> None:
    for temperature in (0.0, 1.0):
        result = sample(torch.zeros(1, 1), temperature=temperature)
        assert (result.tokens.tolist(), result.margins.tolist()) == ([0], [math.inf])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalty_equals_that_of_transformers(temperature: float) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(3, 60)
    preceding = (1, 5, 5, 59, int(logits[0].argmax()))
    ids = torch.tensor(preceding).expand(3, -1)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits)
    plain = sample(expected, temperature=temperature)
    penalised = sample(logits, temperature=temperature, penalty=1.7, preceding=preceding)
    assert penalised.tokens.tolist() == plain.tokens.tolist()
    assert penalised.margins.tolist() == plain.margins.tolist()


def test_rows_do_not_depend_on_their_batch() -> None:
    logits = torch.randn(6, 300) * 2
    settings = {"temperature": 0.9, "top_p": 0.9}
    together = sample(logits, **settings).tokens.tolist()
    whole = params(6, **settings)  # type: ignore[arg-type]
    for n in range(6):
        alone = SampleParams(
            whole.is_greedy,
            whole.temperature[n : n + 1],
            whole.top_k[n : n + 1],
            whole.top_p[n : n + 1],
            whole.log_min_p[n : n + 1],
            whole.penalty[n : n + 1],
            whole.keys[n : n + 1],
            whole.preceding_ids,
            whole.preceding_start[:2],
        )
        result = sample_and_verify(logits[n : n + 1], torch.tensor([NO_DRAFT]), alone)
        assert result.tokens.tolist() == [together[n]]


def test_masked_tokens_are_never_chosen() -> None:
    logits = torch.randn(5, 100)
    logits[:, ::2] = -math.inf
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}):
        assert (sample(logits, **options).tokens % 2 == 1).all()


def test_a_draft_holds_up_to_its_first_wrong_token() -> None:
    logits = torch.eye(5)[[0, 1, 2, 3, 4, 0, 1]]
    draft = [0, 1, 4, 3, NO_DRAFT, 0, NO_DRAFT]  # a run of five rows and one of two
    result = sample(logits, draft)
    assert result.tokens.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert result.accepted.tolist() == [True, True, False, False, False, True, False]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    temperature=st.sampled_from([0.0, 0.8]),
    step=st.sampled_from([0.0, 0.5]),
)
def test_a_change_below_the_margins_changes_no_token(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float, step: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 50, generator=generator) * 2
    if step:  # many equal scores
        logits = (logits / step).round() * step
    settings = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    result = sample(logits, seed=seed, **settings)
    room = torch.minimum(result.margins, result.edge_margins).clamp(max=1.0)
    # either of two scores may be off, in opposite directions; float32 rounds
    shake = (torch.rand(4, 50, generator=generator) - 0.5) * (room[:, None] * 0.98 - 1e-5)
    shaken = sample(logits + shake, seed=seed, **settings)
    safe = room > 1e-4
    assert shaken.tokens[safe].tolist() == result.tokens[safe].tolist()


@pytest.mark.parametrize(
    ("options", "edge"),
    [
        ({"top_k": 1}, 0.0),  # either of the equals could be the one that is kept
        ({"top_k": 2}, 1.0),
        ({"top_p": 0.4}, 0.0),
        ({"min_p": 1.0}, 0.0),
    ],
)
def test_equal_scores_at_a_truncation_are_a_tie(options: dict[str, float], edge: float) -> None:
    result = sample(torch.tensor([[2.0, 2.0, 1.0]]), temperature=1.0, **options)
    assert result.edge_margins.tolist() == [edge]


def test_the_best_alone_is_no_tie_with_itself() -> None:
    result = sample(torch.tensor([[2.0, 1.0, 1.0]]), temperature=1.0, min_p=1.0)
    assert result.edge_margins.tolist() == [1.0]


def test_a_score_that_overflows_has_no_margin() -> None:
    logits = torch.tensor([[3e38, 1.0], [-math.inf, -math.inf]])
    assert sample(logits, temperature=0.5).margins.isnan().all()


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, 5)).tokens.tolist() == []


def test_a_row_with_nan_has_no_margin() -> None:
    logits = torch.randn(1, 20)
    logits[0, 3] = math.nan
    for temperature in (0.0, 1.0):
        assert math.isnan(sample(logits, temperature=temperature).margins[0])


def test_input_is_left_as_it_was() -> None:
    logits = torch.randn(2, 50)
    before = logits.clone()
    sample(logits, temperature=0.7, top_k=4, top_p=0.9, penalty=1.3, preceding=(3, 4))
    sample(logits)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("logits", "draft", "num_rows"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64), 4),
        (torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64), 2),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64), 2),
        (torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64), 2),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32), 2),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), 3),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit_are_refused(
    logits: torch.Tensor, draft: torch.Tensor, num_rows: int
) -> None:
    with pytest.raises(KernelArgumentError):
        sample_and_verify(logits, draft, params(num_rows))


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "log_min_p", "penalty"])
def test_settings_of_another_number_of_rows_are_refused_by_name(name: str) -> None:
    short = replace(params(3), **{name: getattr(params(2), name)})  # type: ignore[arg-type]
    with pytest.raises(KernelArgumentError, match=name):
        sample_and_verify(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), short)
