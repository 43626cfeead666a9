"""Splitting replies into pieces, and cleaning them for speech."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tts.sentences import MAX_FIRST_CHARS, MAX_PIECE_CHARS, SentenceSplitter, speakable

TRICKY = (
    "Dr. Smith paid $3.50 for it... and then left. It was 5 p.m. Then the U.S. President, "
    'J. K. Rowling and Mr. Jones arrived at www.example.com. "Really?" she asked. “Yes!” '
    "No. 5 is alive, e.g. here.\n1. Open the door. 2. Close it.\n\n- **bold** item; "
    "see [this](https://a.b/c?d=e.f). Was it 3. No! 你好。再见！"
)
TEXTS = st.one_of(
    st.text(alphabet=st.sampled_from(list('aA1I .,!?…\n"”)-;:。')), max_size=400),
    st.lists(
        st.sampled_from([*re.findall(r"\S+|\s+", TRICKY), " ", ". ", "the ", "The "]), max_size=120
    ).map("".join),
)


def split(text: str) -> list[str]:
    splitter = SentenceSplitter()
    return [*splitter.push(text), *splitter.finish()]


@given(text=TEXTS, data=st.data())
@example(text=TRICKY, data=None)
def test_pieces_do_not_depend_on_how_the_text_is_divided(text, data):
    if data is None:
        cuts = list(range(len(text) + 1))
    else:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=30)) | {0, len(text)})
    splitter = SentenceSplitter()
    pieces = [p for a, b in zip(cuts, cuts[1:], strict=False) for p in splitter.push(text[a:b])]
    pieces += splitter.finish()
    assert pieces == split(text)


@given(text=TEXTS)
def test_pieces_lose_nothing_but_white_space_and_are_bounded(text):
    pieces = split(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    for index, piece in enumerate(pieces):
        assert piece and piece == piece.strip()
        limit = MAX_FIRST_CHARS if index == 0 else MAX_PIECE_CHARS
        assert len(piece.rstrip('"”)!?….。')) <= limit


@given(text=TEXTS, more=TEXTS)
def test_a_piece_given_out_is_never_taken_back_by_what_follows(text, more):
    early = SentenceSplitter().push(text)
    assert split(text + more)[: len(early)] == early


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Dr. Smith is in. Mrs. Jones is not.", ["Dr. Smith is in.", "Mrs. Jones is not."]),
        ("It costs $3.50. Pi is 3.14159.", ["It costs $3.50.", "Pi is 3.14159."]),
        ("It weighs 3. That is all.", ["It weighs 3.", "That is all."]),
        ("Well... maybe it is. Wait... The end.", ["Well... maybe it is.", "Wait...", "The end."]),
        ("Ask J. K. Rowling. She knows.", ["Ask J. K. Rowling.", "She knows."]),
        (
            "The U.S. President spoke. I left the U.S. The end.",
            ["The U.S. President spoke.", "I left the U.S.", "The end."],
        ),
        ("It opens at 5 p.m. Then we go.", ["It opens at 5 p.m.", "Then we go."]),
        ("“Stop!” he cried. “Why?” It rained.", ["“Stop!” he cried.", "“Why?”", "It rained."]),
        ("1. Open it.\n2. Close it.", ["1. Open it.", "2. Close it."]),
        ("Do this: 1. Open. 2. Shut.", ["Do this: 1. Open.", "2. Shut."]),
        ("See No. 5 on Jan. 3. No. Maybe not.", ["See No. 5 on Jan. 3.", "No.", "Maybe not."]),
        (
            "Go to www.example.com/a?b=c.d now. Done.",
            ["Go to www.example.com/a?b=c.d now.", "Done."],
        ),
        ("Yes! No? Perhaps.", ["Yes!", "No?", "Perhaps."]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("", []),
        (" \n ", []),
        ("so what i meant e.g. this", ["so what i meant e.g. this"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, pieces):
    assert split(text) == pieces


def test_only_the_first_piece_may_end_at_a_clause():
    first = "Once upon a time in a far land, there lived a king."
    assert split(first + " " + first) == [
        "Once upon a time in a far land,",
        "there lived a king.",
        first,
    ]


def test_a_full_stop_waits_for_what_follows():
    splitter = SentenceSplitter()
    assert splitter.push("I saw Dr.") == []
    assert splitter.push(" ") == []
    assert splitter.push("Smith. ") == []
    assert splitter.push("H") == ["I saw Dr. Smith."]


def test_text_without_an_end_is_cut_between_words():
    pieces = split("word " * 200)
    assert len(pieces) > 3
    assert all(set(piece.split()) == {"word"} for piece in pieces)


def test_a_finished_splitter_is_as_new():
    splitter = SentenceSplitter()
    text = "Once upon a time in a far land, there was rain. It stopped."
    first = [*splitter.push(text), *splitter.finish()]
    assert [*splitter.push(text), *splitter.finish()] == first


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("**Bold** and *slanted* and `code`", "Bold and slanted and code"),
        ("# Title", "Title"),
        ("- an item", "an item"),
        ("> quoted", "quoted"),
        ("see [the page](https://a.b/c) now", "see the page now"),
        ("[x](/həlˈO/)", "x"),
        ("https://www.example.com", "example.com"),
        ("| a | b |", "a, b,"),
        ("2*3 and 4 * 5", "2 times 3 and 4 times 5"),
        ("a_snake_case name", "a snake case name"),
        ("Fine 😀👍!", "Fine !"),
        ("one,", "one,"),
        ("---", ""),
        ("```python", ""),
        ("?!…", ""),
        ("", ""),
        ("a\x00b\u200bc", "a b c"),
    ],
)
def test_markup_is_not_spoken(text, spoken):
    assert speakable(text) == spoken
