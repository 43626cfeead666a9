from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.detokenizer import IncrementalDetokenizer, StopMatcher
from llm_engine.tokenizer import Tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
FIXED = settings(max_examples=200)


@FIXED
@given(ids=st.lists(st.integers(0, 49_151), max_size=30), text=TEXT)
def test_every_prefix_equals_the_full_decode_without_its_unfinished_character(
    smollm2_tokenizer: Tokenizer, ids: list[int], text: str
) -> None:
    ids = [*smollm2_tokenizer.encode(text), *ids]
    detokenizer = IncrementalDetokenizer(smollm2_tokenizer)
    shown = ""
    for count, token in enumerate(ids, 1):
        shown += detokenizer.push([token])
        whole = smollm2_tokenizer.decode(ids[:count])
        assert whole.startswith(shown)
        # an unfinished character has at most three bytes, and broken ones may come as one mark each
        assert whole[len(shown) :] in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)
    assert shown + detokenizer.finish() == smollm2_tokenizer.decode(ids)


def test_a_character_of_several_tokens_comes_whole(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("ok 🦔!")
    detokenizer = IncrementalDetokenizer(smollm2_tokenizer)
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces) == "ok 🦔!"
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces  # some token completed nothing


def test_special_tokens_give_no_text(smollm2_tokenizer: Tokenizer) -> None:
    assert IncrementalDetokenizer(smollm2_tokenizer).push(sorted(smollm2_tokenizer.eos_ids)) == ""


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (("END",), "say END now", "say "),
        (("END",), "say EN", "say EN"),
        (("\n\n", "User:"), "a\nb User: c", "a\nb "),
        (("aab",), "aaab", "a"),
        (("bc", "abcd"), "xabcd", "xa"),  # the first to be completed
        (("c", "abc"), "xabc", "x"),  # of two that end together the longer
        ((), "anything", "anything"),
    ],
)
def test_text_ends_before_the_stop_string_however_it_is_cut(
    stop: tuple[str, ...], text: str, expected: str
) -> None:
    for size in range(1, len(text) + 1):
        matcher = StopMatcher(stop)
        shown = "".join(matcher.push(text[i : i + size]) for i in range(0, len(text), size))
        assert matcher.is_stopped == (expected != text)
        assert shown + matcher.finish() == expected


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    text=st.text("abc", max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
def test_cuts_do_not_matter_and_nothing_of_a_stop_string_is_shown(
    stop: list[str], text: str, cuts: list[int]
) -> None:
    matcher = StopMatcher(stop)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = ""
    for start, end in pairwise(borders):
        shown += matcher.push(text[start:end])
        assert text.startswith(shown)
        assert not any(s in shown for s in stop)
    shown += matcher.finish()
    whole = StopMatcher(stop)
    assert shown == whole.push(text) + whole.finish()
    assert matcher.is_stopped == any(s in text for s in stop)


def test_nothing_is_shown_once_stopped() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.push("ax") == "a"
    assert (matcher.push("b"), matcher.finish()) == ("", "")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        StopMatcher(("a", ""))
