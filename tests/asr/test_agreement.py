from __future__ import annotations

from asr.agreement import Agreement


def stable_counts(*hypotheses: tuple[str, float]) -> list[int]:
    agreement = Agreement(span_s=0.6)
    return [agreement.push(text.split(), end_s) for text, end_s in hypotheses]


def test_words_are_stable_once_hypotheses_agree_long_enough() -> None:
    counts = stable_counts(("I want", 0.3), ("I want to", 0.6), ("I want to go home", 0.9))
    assert counts == [0, 0, 2]


def test_agreement_within_a_short_time_counts_for_nothing() -> None:
    assert stable_counts(*[("I want to go", 0.1 * i) for i in range(6)]) == [0] * 6


def test_a_changed_word_takes_stability_back() -> None:
    counts = stable_counts(
        ("a light rose", 0.3), ("a light rose please", 0.9), ("a bright rose please", 1.2)
    )
    assert counts == [0, 3, 1]


def test_case_and_punctuation_do_not_break_agreement() -> None:
    assert stable_counts(("Okay, great", 0.3), ("okay great. thank", 0.9))[-1] == 2


def test_the_last_word_is_never_stable() -> None:
    assert stable_counts(("yes", 0.3), ("yes", 1.0), ("yes", 2.0)) == [0, 0, 0]
