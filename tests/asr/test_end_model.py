from __future__ import annotations

from itertools import product

import pytest

from asr.end_model import (
    WEIGHTS,
    Evidence,
    features,
    is_greeting,
    is_whole_answer,
    joint_probability,
)

PROBABILITIES = (None, 0.1, 0.9)


@pytest.mark.parametrize("turn", [0.1, 0.9])
def test_more_of_any_source_never_lowers_the_probability(turn: float) -> None:
    base = Evidence("a large coffee", turn, 0.1)
    assert joint_probability(Evidence("a large coffee", turn, 0.9)) > joint_probability(base)
    assert joint_probability(Evidence("a large coffee", 0.95, 0.1)) > joint_probability(base)
    unanswered = joint_probability(Evidence("a large coffee", turn))
    assert joint_probability(Evidence("a large coffee.", turn)) > unanswered


@pytest.mark.parametrize("end", [None, 0.5])
def test_a_last_word_that_asks_for_more_lowers_it(end: float | None) -> None:
    whole = joint_probability(Evidence("a large coffee", 0.5, end))
    assert joint_probability(Evidence("a large coffee and", 0.5, end)) < whole


def test_the_mark_says_nothing_beside_the_reply_model() -> None:
    plain, marked = (Evidence(text, 0.5, 0.5) for text in ("a large coffee", "a large coffee."))
    assert joint_probability(plain) == joint_probability(marked)


def test_every_combination_of_sources_gives_a_probability() -> None:
    for text, turn, end in product((None, "", "Yes."), PROBABILITIES, PROBABILITIES):
        assert 0.0 < joint_probability(Evidence(text, turn, end)) < 1.0


def test_certainties_do_not_overflow() -> None:
    assert 0.0 < joint_probability(Evidence("the", 0.0, 0.0)) < 0.1
    assert 0.9 < joint_probability(Evidence("Yes, please.", 1.0, 1.0)) < 1.0


def test_there_are_weights_for_every_set_of_models() -> None:
    assert set(WEIGHTS) == set(product((True, False), repeat=2))


def test_marks_and_function_words_are_features() -> None:
    assert features(Evidence("Is it?"))[2:] == (1.0, 0.0)
    assert features(Evidence("I want to"))[2:] == (0.0, 1.0)
    assert features(Evidence("well..."))[2:] == (0.0, 0.0)
    assert features(Evidence(None)) == (0.0,) * 4


def test_greetings_and_answers_are_whole_texts() -> None:
    assert is_greeting("Hello?")
    assert not is_greeting("Hello, what time is it?")
    assert is_whole_answer("yes.")
    assert not is_whole_answer("yes but")
