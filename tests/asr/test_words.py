from __future__ import annotations

import pytest

from asr.words import is_mark, place_words

SPLIT = ([" What", " time", "?"], [[1], [2, 3], [4]])
ALIGNMENT = [(0, 5), (0, 6), (1, 10), (2, 14), (3, 20)]


def test_words_get_times_confidence_and_their_marks() -> None:
    words = place_words(SPLIT, ALIGNMENT, [0.9, 0.4, 0.9, 0.1], start_s=2.0)
    assert [word.text for word in words] == ["What", "time?"]
    assert (words[0].start_s, words[0].end_s) == pytest.approx((2.1, 2.14))
    assert (words[1].start_s, words[1].end_s) == pytest.approx((2.2, 2.3))
    assert words[0].probability == pytest.approx(0.9)
    assert words[1].probability == pytest.approx(0.6)


def test_no_tokens_are_no_words() -> None:
    assert place_words(([], []), [], [], 0.0) == ()


def test_marks_hold_no_letter_or_digit() -> None:
    assert is_mark(" ...")
    assert not is_mark(" 5")
