from __future__ import annotations

import pytest

from asr.guards import SpeechGates, cut_loops, max_new_tokens

GATES = SpeechGates()


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("5 5 5 0 1 2 3", 3.0),
        ("Five five five, zero one two three.", 3.0),
        ("my code is A A A B B B", 4.0),
        ("No, no, no, no!", 2.0),
        ("very very very very good", 2.5),
        ("I had had had enough", 2.0),
        ("ring ring ring ring", 2.0),
        ("bye bye bye", 1.2),
        ("one two three one two three", 3.0),
        ("double o seven, double o seven", 2.5),
    ],
)
def test_digits_letters_and_repeated_words_stay(text: str, duration_s: float) -> None:
    assert cut_loops(text, duration_s) == text


def test_a_phrase_that_loops_is_kept_once() -> None:
    looped = "I want to go. I want to go. I want to go. I want to go."
    assert cut_loops(looped, 4.0) == "I want to go."


def test_what_follows_a_loop_goes_with_it() -> None:
    looped = "See the blog storage of the blog storage of the blog storage of the blog"
    assert cut_loops(looped, 4.0) == "See the blog storage of"


def test_a_word_that_loops_faster_than_speech_is_kept_once() -> None:
    assert cut_loops("as your blogs" + ", blogs" * 30, 2.0) == "as your blogs"


def test_texts_without_a_loop_are_not_touched() -> None:
    text = "Ask not what your country can do for you, ask what you can do for your country."
    assert cut_loops(text, 8.0) == text
    assert cut_loops("", 1.0) == ""


def test_the_token_bound_grows_with_the_audio() -> None:
    assert max_new_tokens(0.0) >= 10
    assert max_new_tokens(10.0) - max_new_tokens(5.0) == 30


@pytest.mark.parametrize(
    ("text", "log_probability", "no_speech", "is_dropped"),
    [
        ("Yes.", -1.2, 0.74, False),
        ("What time is it?", -0.2, 0.05, False),
        ("Today", -1.9, 0.08, False),
        ("Alexa.", -1.41, 0.85, False),
        ("I'm going to go to the bathroom.", -3.1, 0.9, True),
        ("Okay.", -5.0, 0.3, True),
        ("you", -0.6, 0.6, True),
        ("You", -0.6, 0.2, False),
        (".", -0.1, 0.0, True),
        ("", -0.1, 0.0, True),
        ("Okay.", -0.6, 0.6, False),
    ],
)
def test_gates_drop_doubtful_text_only(
    text: str, log_probability: float, no_speech: float, is_dropped: bool
) -> None:
    assert GATES.drops(text, log_probability, no_speech) is is_dropped
