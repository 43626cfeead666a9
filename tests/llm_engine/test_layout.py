"""How a snapshot is cut into shared prefix, context and parts."""

from __future__ import annotations

from llm_engine.layout import CONTEXT, Layout
from llm_engine.prompt import Segment, Snapshot


def layout_of(*segments: Segment) -> Layout:
    return Layout.of(Snapshot(0, segments), lambda token: token in (46, 63))


def test_history_before_the_first_slot_is_one_part_and_each_later_segment_its_own() -> None:
    layout = layout_of(
        Segment("system", "prefix", (1, 2)),
        Segment("history.0", "history", (3,)),
        Segment("history.1", "history", (4, 5)),
        Segment("slot", "slot", (6,)),
        Segment("passages", "suffix", (7, 8)),
        Segment("header", "suffix", (9,)),
    )
    assert layout.prefix_ids == (1, 2)
    assert [part.token_ids for part in layout.parts] == [(3, 4, 5), (6,), (7, 8), (9,)]
    assert layout.parts[0].key == CONTEXT
    assert [part.is_slot for part in layout.parts] == [False, True, False, False]
    assert layout.token_ids == tuple(range(1, 10))


def test_a_prompt_of_prefixes_alone_keeps_its_last_one_to_itself() -> None:
    layout = layout_of(Segment("a", "prefix", (1, 2)), Segment("b", "prefix", (3,)))
    assert layout.num_prefix_tokens == 2 and layout.parts[0].token_ids == (3,)
    alone = layout_of(Segment("a", "prefix", (1, 2)))
    assert alone.num_prefix_tokens == 0 and alone.parts[0].token_ids == (1, 2)


def test_an_empty_slot_is_a_part_but_an_empty_suffix_is_none() -> None:
    layout = layout_of(
        Segment("system", "prefix", (1,)),
        Segment("slot", "slot", ()),
        Segment("note", "suffix", ()),
        Segment("header", "suffix", (2,)),
    )
    assert [part.token_ids for part in layout.parts] == [(), (2,)]
    assert layout.score_index is None


def test_the_scored_token_is_the_last_slots_last_that_is_no_punctuation() -> None:
    slot = Segment("slot", "slot", (5, 6, 46, 63))
    layout = layout_of(Segment("system", "prefix", (1,)), slot, Segment("header", "suffix", (2,)))
    assert layout.score_index == 2
    only_punctuation = Segment("slot", "slot", (46,))
    assert layout_of(Segment("system", "prefix", (1,)), only_punctuation).score_index is None
