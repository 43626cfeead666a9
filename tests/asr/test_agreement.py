from __future__ import annotations

from asr.agreement import Agreement


def stable_counts(*hypotheses: tuple[str, float]) -> list[int]:
    agreement = Agreement()
    return [agreement.push(text.split(), end_s) for text, end_s in hypotheses]


def test_words_are_stable_once_hypotheses_agree_long_enough() -> None:
    counts = stable_counts(("I want", 0.3), ("I want to", 0.6), ("I want to go home", 0.9))
    assert counts == [0, 1, 3]


def test_earlier_words_are_stable_sooner_than_the_newest() -> None:
    counts = stable_counts(("a b c d", 0.3), ("a b c d e", 0.6), ("a b c d e f", 0.9))
    assert counts == [0, 3, 4]


def test_agreement_within_a_short_time_counts_for_nothing() -> None:
    assert stable_counts(*[("I want to go there now", 0.05 * i) for i in range(6)]) == [0] * 6


def test_a_changed_word_takes_stability_back() -> None:
    counts = stable_counts(
        ("a light rose", 0.3), ("a light rose please", 0.9), ("a bright rose please", 1.2)
    )
    assert counts == [0, 3, 1]


def test_a_word_that_flickers_in_between_is_not_stable() -> None:
    counts = stable_counts(("two tickets", 0.3), ("two thickets", 0.6), ("two tickets", 0.9))
    assert counts[-1] == 1


def test_case_and_punctuation_do_not_break_agreement() -> None:
    assert stable_counts(("Okay, great", 0.3), ("okay great. thank", 0.9))[-1] == 2


def test_all_words_are_stable_at_a_pause() -> None:
    assert Agreement().push(["yes"], 0.5, at_pause=True) == 1
