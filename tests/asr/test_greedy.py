from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asr.greedy import MAX_CHECKED, Decoded, TokenRules, decode_greedily

END, VOCABULARY = 9, 10
PROMPT = [8, 7]
RULES = TokenRules(end=END, never=[8], never_first=[END], repetition_penalty=1.1)
MAX_TOKENS = 20

tokens = st.lists(st.integers(0, 7), max_size=12)


@dataclass
class Read:
    tokens: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def truncate(self, num_tokens: int) -> None:
        del self.tokens[num_tokens:]


class Scorer:
    """Scores that hang on everything read; `passes` holds the number of tokens of each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.passes: list[int] = []

    def extend(self, read: Read, new: Sequence[int]) -> np.ndarray:
        self.passes.append(len(new))
        rows = []
        for token in new:
            read.tokens.append(token)
            row = np.random.default_rng([self.seed, *read.tokens]).normal(scale=3, size=VOCABULARY)
            row[END] += len(read.tokens) - 6
            rows.append(row)
        return np.array(rows, dtype=np.float32)


def decode(scorer: Scorer, draft: Sequence[int] = ()) -> Decoded:
    return decode_greedily(Read(), scorer.extend, PROMPT, RULES, MAX_TOKENS, draft)


@given(seed=st.integers(0, 1000), draft=tokens)
def test_no_draft_changes_what_is_decoded(seed: int, draft: list[int]) -> None:
    free, checked = decode(Scorer(seed)), decode(Scorer(seed), draft)
    assert checked.token_ids == free.token_ids
    assert np.isclose(checked.log_probability, free.log_probability)
    assert np.array_equal(checked.kept_scores, free.kept_scores)


@given(seed=st.integers(0, 1000), cut=st.integers(0, 20), rest=tokens)
def test_a_draft_that_is_right_for_a_while_changes_nothing_either(
    seed: int, cut: int, rest: list[int]
) -> None:
    free = decode(Scorer(seed)).token_ids
    assert decode(Scorer(seed), [*free[:cut], *rest]).token_ids == free


def test_a_right_draft_takes_a_pass_per_handful_of_tokens() -> None:
    scorer = Scorer(seed=3)
    free = decode(scorer)
    assert scorer.passes == [2] + [1] * len(free.token_ids)
    checked = Scorer(seed=3)
    decode(checked, free.token_ids)
    assert len(checked.passes) == 1 + len(free.token_ids) // (MAX_CHECKED + 1)


def test_text_after_a_wrong_word_is_still_checked_not_written() -> None:
    seed = next(s for s in range(1000) if len(decode(Scorer(s)).token_ids) >= 7)
    free = list(decode(Scorer(seed)).token_ids)
    for draft in (free[:3] + free[4:], [*free[:3], (free[3] + 1) % 8, *free[4:]]):
        scorer = Scorer(seed)
        assert list(decode(scorer, draft).token_ids) == free
        assert len(scorer.passes) < len(free)


def test_rules_hold_at_every_token() -> None:
    for seed in range(50):
        decoded = decode(Scorer(seed))
        assert 8 not in decoded.token_ids
        assert decoded.token_ids
        assert len(decoded.token_ids) <= MAX_TOKENS
        assert decoded.log_probability < 0
