from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.normal_form import ends_sentence, normal_form, prompt_form


@pytest.mark.parametrize(
    ("heard", "prompt"),
    [
        ("what time is it", "What time is it"),
        ("What time is it?", "What time is it?"),
        ("Turn on the lamp.", "Turn on the lamp"),
        ("turn on the lamp", "Turn on the lamp"),
        ("Turn on the lamp!", "Turn on the lamp"),
        ("Turn on the lamp...", "Turn on the lamp"),
        ("Okay, I'm here.", "Okay I'm here"),
        ("Hello? Gemini, are you there?", "Hello? Gemini are you there?"),
        ("Okay. great. Thanks", "Okay. Great. Thanks"),
        ("It costs $1,000.50.", "It costs $1,000.50"),
        ("At 2:30 p.m.", "At 2:30 p.m"),
        ("a twenty-one year-old", "A twenty-one year-old"),
        ("“Quoted,” he said", "Quoted he said"),
        ("wait - no", "Wait no"),
        ("5 5 5 - 0 1 2", "5 5 5 0 1 2"),
        ("", ""),
        ("...", ""),
    ],
)
def test_flips_without_a_meaning_vanish(heard: str, prompt: str) -> None:
    assert prompt_form(heard) == prompt


def test_a_question_stays_a_question() -> None:
    assert prompt_form("you are there?") != prompt_form("you are there.")


@given(st.text(alphabet="ab I'.,?!:-5 ’…", max_size=40))
def test_the_prompt_form_is_its_own_prompt_form(text: str) -> None:
    assert prompt_form(prompt_form(text)) == prompt_form(text)


@given(st.lists(st.sampled_from(["what", "time", "Rose", "it's", "5"]), min_size=1, max_size=6))
def test_commas_and_a_last_full_stop_never_matter(words: list[str]) -> None:
    assert prompt_form(", ".join(words) + ".") == prompt_form(" ".join(words))


def test_normal_forms_compare_words_only() -> None:
    assert normal_form("It’s 2:30, Joe!") == normal_form("it's 2 30 joe")
    assert normal_form("...") == ""


def test_a_sentence_end_is_seen_behind_blanks() -> None:
    assert ends_sentence("Done. ")
    assert not ends_sentence("Done")
    assert not ends_sentence("")
