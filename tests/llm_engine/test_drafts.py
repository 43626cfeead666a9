"""Reply tokens of one prompt: where they end, and what is worth keeping of them."""

from __future__ import annotations

from typing import Any

import pytest

from llm_engine.drafts import MAX_REMEMBERED, Candidate, Draft, DraftMemory, ReplyLimits
from tests.llm_engine.engine_rig import ByteTokenizer

TOKENIZER: Any = ByteTokenizer()


def draft_of(text: bytes, max_tokens: int = 50, stop: tuple[str, ...] = ()) -> Draft:
    draft = Draft(TOKENIZER, ReplyLimits(max_tokens, stop), tie_bound=0.1)
    for at, token in enumerate(text):
        if draft.finish is None:
            draft.add(token, 1.0, float(at), is_early=True)
    return draft


def test_the_end_of_message_ends_it_and_is_not_part_of_it() -> None:
    draft = draft_of(b"yes")
    draft.add(256, 1.0, 9.0, is_early=True)
    assert draft.finish == "stop" and bytes(draft.token_ids) == b"yes" and draft.text == "yes"


def test_it_ends_at_its_length() -> None:
    draft = draft_of(b"yes and no", max_tokens=4)
    assert draft.finish == "length" and draft.text == "yes " and draft.room == 0


def test_a_stop_string_over_several_tokens_ends_it_before_the_string() -> None:
    draft = draft_of(b"one halt two", stop=("halt",))
    assert draft.finish == "stop" and draft.text == "one "


def test_text_that_may_begin_a_stop_string_is_held_back_and_given_at_the_end() -> None:
    draft = draft_of(b"one ha", stop=("halt",))
    assert draft.text == "one "
    draft.add(257, 1.0, 0.0, is_early=True)
    assert draft.text == "one ha"


def test_half_a_character_is_never_text() -> None:
    draft = draft_of("é".encode()[:1])
    assert draft.text == ""
    draft.add("é".encode()[1], 1.0, 0.0, is_early=True)
    assert draft.text == "é" and draft.texts == ["", "é"]


@pytest.mark.parametrize("text", [b"yes and no", b"yes halt", b"yes ha", 3 * "\u00e9".encode()])
@pytest.mark.parametrize("max_tokens", [1, 3, 4, 6, 50])
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_shorter_limit_gives_the_reply_that_it_would_have_given_from_the_start(
    text: bytes, max_tokens: int, is_ended: bool
) -> None:
    drafts = [draft_of(text, limit, stop=("halt",)) for limit in (50, max_tokens)]
    for draft in drafts:
        if is_ended and draft.finish is None:
            draft.add(256, 1.0, 9.0, is_early=True)
    known, expected = drafts
    limited = known.limited(max_tokens)
    for name in ("token_ids", "decided_at_s", "text", "finish", "tie_index", "room"):
        assert getattr(limited, name) == getattr(expected, name), name


def test_a_sentence_is_there_once_the_token_after_it_is() -> None:
    assert not draft_of(b"It is.").has_sentence
    assert draft_of(b"It is. ").has_sentence
    assert not draft_of(b"Ha! W").has_sentence  # too short to stop for


def test_the_first_tie_is_remembered() -> None:
    draft = Draft(TOKENIZER, ReplyLimits(9, ()), tie_bound=0.1)
    for token, margin in ((97, 0.5), (98, 0.05), (99, 0.01)):
        draft.add(token, margin, 0.0, is_early=False)
    assert draft.tie_index == 1


def test_a_candidate_shrinks_by_what_was_decided_or_is_dropped() -> None:
    candidate = Candidate((1, 2, 3), (0.1, 0.2, 0.3))
    assert candidate.after((1, 2)) == Candidate((3,), (0.3,))
    assert candidate.after((1, 9)) == Candidate()
    assert candidate.after((1, 2, 3, 4)) == Candidate()
    assert candidate.then(Candidate((4,), (0.4,))).token_ids == (1, 2, 3, 4)


def test_memory_gives_back_exact_drafts_of_the_last_prompts() -> None:
    memory = DraftMemory()
    for prompt in range(MAX_REMEMBERED + 1):
        memory.put((prompt,), draft_of(b"reply"))
    assert memory.take((0,)) is None
    assert memory.take((1,)) is not None and memory.take((1,)) is None
    inexact = draft_of(b"reply")
    inexact.is_exact = False
    memory.put((9,), inexact)
    memory.put((8,), draft_of(b""))
    assert memory.take((9,)) is None and memory.take((8,)) is None
    memory.clear()
    assert memory.take((2,)) is None
