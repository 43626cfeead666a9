from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.proposals import AdaptiveLength, NgramPool


def test_a_draft_is_continued_after_its_longest_match() -> None:
    pool = NgramPool()
    pool.add((1, 2, 3, 4, 5))
    pool.add((9, 3, 7))
    assert pool.propose((0, 2, 3), 8) == (4, 5)  # two tokens match, the newer draft only one
    assert pool.propose((9, 3), 8) == (7,)
    assert pool.propose((8, 3), 8) == (7,)  # of equal matches the newest draft's


def test_a_proposal_is_no_longer_than_asked_and_never_crosses_drafts() -> None:
    pool = NgramPool()
    pool.add((1, 2, 3))
    pool.add((4, 5, 6))
    assert pool.propose((4,), 1) == (5,)
    assert pool.propose((4,), 9) == (5, 6)
    assert pool.propose((6,), 9) == ()
    assert pool.propose((4,), 0) == ()
    assert pool.propose((), 5) == ()
    assert pool.propose((77,), 5) == ()


def test_the_prompt_comes_behind_all_drafts_and_is_replaced() -> None:
    pool = NgramPool()
    pool.set_prompt((1, 2, 3))
    assert pool.propose((2,), 4) == (3,)
    pool.add((2, 8))
    assert pool.propose((5, 2), 4) == (8,)
    pool.set_prompt((6, 7))
    assert pool.propose((2, 3), 4) == ()


def test_short_matches_can_be_ruled_out() -> None:
    pool = NgramPool(min_match=2)
    pool.add((1, 2, 3))
    assert pool.propose((9, 2), 4) == ()
    assert pool.propose((1, 2), 4) == (3,)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    pool = NgramPool(max_tokens=6)
    for start in (10, 20, 30):
        pool.add((start, start + 1, start + 2))
    assert pool.num_tokens == 6
    assert pool.propose((10,), 4) == ()
    assert pool.propose((20,), 4) == (21, 22)
    pool.add(range(100, 200))
    assert pool.num_tokens == 6
    assert pool.propose((198,), 4) == (199,)


def test_a_draft_that_comes_again_is_held_once() -> None:
    pool = NgramPool()
    pool.add((1, 2))
    pool.add((1, 3))
    pool.add((1, 2))
    assert pool.num_tokens == 4
    assert pool.propose((1,), 1) == (2,)


def propose_slowly(drafts: Sequence[tuple[int, ...]], context: tuple[int, ...]) -> tuple[int, ...]:
    """Newest draft first: the first of the longest matches that something follows."""
    best, found = 0, ()
    for draft in drafts:
        for place in range(len(draft) - 1):
            length = 0
            while (
                length < min(8, len(context), place + 1)
                and draft[place - length] == context[-1 - length]
            ):
                length += 1
            if length > best:
                best, found = length, draft[place + 1 : place + 4]
    return found


@given(
    drafts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=15).map(tuple), max_size=5),
    context=st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple),
)
def test_a_proposal_is_what_a_plain_search_finds(
    drafts: list[tuple[int, ...]], context: tuple[int, ...]
) -> None:
    pool = NgramPool()
    newest_first: list[tuple[int, ...]] = []
    for draft in drafts:
        pool.add(draft)
        newest_first = [draft, *(other for other in newest_first if other != draft)]
    assert pool.propose(context, 3) == propose_slowly(newest_first, context)


def test_sizes_that_make_no_sense_are_refused() -> None:
    for arguments in ({"max_tokens": 0}, {"min_match": 0}, {"min_match": 3, "max_match": 2}):
        with pytest.raises(ValueError, match="NgramPool"):
            NgramPool(**arguments)


def test_length_grows_where_proposals_hold_and_falls_to_none_where_they_do_not() -> None:
    length = AdaptiveLength(8)
    first = length.next_length()
    assert 0 < first < 8
    for _ in range(20):
        length.observe(4, 4)
    assert length.next_length() == 8
    for _ in range(60):
        length.observe(4, 0)
    assert length.next_length() == 0


def test_one_token_is_tried_again_after_a_while() -> None:
    length = AdaptiveLength(8)
    for _ in range(20):
        length.observe(4, 0)
    lengths = [length.next_length() for _ in range(40)]
    assert sorted(set(lengths)) == [0, 1]
    assert 1 <= lengths.count(1) <= 4


def test_length_maximises_tokens_per_cost() -> None:
    length = AdaptiveLength(8, token_cost=0.3)
    for _ in range(200):
        length.observe(2, 1)  # half of the tried tokens hold
    assert length.acceptance == pytest.approx(0.5, abs=0.01)
    rates = [sum(0.5**i for i in range(n + 1)) / (1 + 0.3 * n) for n in range(9)]
    assert length.next_length() == rates.index(max(rates))


def test_impossible_observations_are_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        AdaptiveLength().observe(2, 3)
    with pytest.raises(ValueError, match="max_tokens=0"):
        AdaptiveLength(0)
