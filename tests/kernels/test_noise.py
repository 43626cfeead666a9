from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from kernels.noise import (
    GUMBEL_MAX,
    ZERO_WEIGHT_BELOW,
    gumbel,
    gumbel_table,
    may_reach,
    philox,
    row_key,
    weight_table,
    weights,
)


@pytest.mark.parametrize(
    ("counter", "row_word", "key", "expected"),
    [
        (0x00000000, 0x00000000, 0x00000000, 0xFF1DAE59),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x2C3F628B),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0xDD7CE038),
    ],
)
def test_words_equal_the_published_vectors(
    counter: int, row_word: int, key: int, expected: int
) -> None:
    """Random123 1.14, tests/kat_vectors, philox2x32 10."""
    assert philox(np.array([counter], np.uint64), row_word, key).tolist() == [expected]


def test_tables_are_the_same_on_every_machine() -> None:
    digests = [hashlib.sha256(t().tobytes()).hexdigest() for t in (gumbel_table, weight_table)]
    assert digests == [
        "3ab975570a7a3ee2f5a46de5b7587e74daffe8fad4e2f1e607bd5785b79b8dff",
        "b35f3cc1c5cd2f4723b4fed8f3fa9459c8d8586586490897aac552b330086cdd",
    ]


def test_tables_fit_the_integers_that_kernels_use() -> None:
    assert np.abs(gumbel_table()).max() < 2**24  # exact in float32
    assert np.abs(gumbel_table()[1]).max() * 2**10 < 2**31
    assert np.abs(weight_table()[1]).max() * 2**10 < 2**31


def exact_gumbel(tokens: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    word = philox(tokens.astype(np.uint64), key[1], key[0]).astype(np.float64)
    return -np.log(-np.log((2 * word + 1) / 2**33))


def test_noise_is_the_gumbel_quantile_of_its_word() -> None:
    tokens = np.arange(300_000)
    key = row_key(3, 1, 4)
    assert np.abs(gumbel(tokens, key) - exact_gumbel(tokens, key)).max() < 2e-5


def test_noise_has_the_gumbel_distribution() -> None:
    noise = gumbel(np.arange(400_000), row_key(11, 2, 5)).astype(np.float64)
    edges = np.quantile(-np.log(-np.log(np.linspace(0, 1, 103)[1:-1])), np.linspace(0, 1, 51))
    probabilities = np.diff(np.exp(-np.exp(-np.concatenate(([-np.inf], edges, [np.inf])))))
    counts, _ = np.histogram(noise, np.concatenate(([-np.inf], edges, [np.inf])))
    expected = probabilities * noise.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 95  # 51 degrees of freedom: p = 2e-4


def test_the_tail_of_the_noise_is_not_cut() -> None:
    """Of a million draws 2^-14 exceed 9.7 each: 61 expected, standard deviation 7.8."""
    noise = gumbel(np.arange(1_000_000), row_key(5, 0, 0))
    assert 30 < int((noise > -math.log(-math.log1p(-(2.0**-14)))).sum()) < 92
    assert noise.max() < GUMBEL_MAX


def test_positions_turns_and_seeds_are_independent() -> None:
    tokens = np.arange(50_000)
    rows = [
        gumbel(tokens, row_key(*parts)) for parts in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    correlation = np.corrcoef(np.stack(rows)) - np.eye(4)
    assert np.abs(correlation).max() < 4.5 / math.sqrt(tokens.size)


def test_keys_of_neighbouring_positions_never_meet() -> None:
    keys = {row_key(s, t, i) for s in (0, 1, -1) for t in range(20) for i in range(200)}
    assert len(keys) == 3 * 20 * 200


def test_no_token_that_may_reach_is_missed() -> None:
    tokens = np.arange(20_000)
    key = row_key(9, 9, 9)
    noise = gumbel(tokens, key)
    for least in (-3.0, 0.0, 2.5, 7.0, 30.0):
        found = may_reach(tokens, key, least)
        assert set(np.flatnonzero(noise >= least)) <= set(found)
        assert found.size <= (noise >= least - 0.1).sum()


def test_weights_are_the_exponential_to_their_last_unit() -> None:
    below = -np.random.default_rng(0).uniform(0, 20, 100_000).astype(np.float32)
    exact = np.exp(below.astype(np.float64)) * 2**24
    assert np.abs(weights(below) - exact).max() < 16  # of 2^24
    assert weights(np.zeros(1, np.float32)).tolist() == [2**24]


def test_weights_vanish_from_the_limit_on_and_never_wrap() -> None:
    far = np.array([ZERO_WEIGHT_BELOW, -100.0, -1e30, -np.inf], np.float32)
    assert weights(far).tolist() == [0, 0, 0, 0]


def test_weights_fall_with_the_distance() -> None:
    below = -np.sort(np.random.default_rng(1).uniform(0, 18, 50_000)).astype(np.float32)
    assert (np.diff(weights(below)) <= 0).all()
