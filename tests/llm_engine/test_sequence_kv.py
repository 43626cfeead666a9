"""The rows of one session from prompt to prompt."""

from __future__ import annotations

import pytest

from llm_engine.errors import CacheFull
from llm_engine.events import SuffixPolicy
from llm_engine.kv_cache import KVCache
from llm_engine.layout import Layout, Part
from llm_engine.sequence_kv import SequenceKV

EXACT = SuffixPolicy.RECOMPUTE


def layout(
    context: tuple[int, ...], slot: tuple[int, ...], suffix: tuple[int, ...], num_prefix: int = 0
) -> Layout:
    parts = [Part("context", context)] if context else []
    parts += [Part("slot", slot, is_slot=True), Part("suffix", suffix)]
    prefix = tuple(range(100, 100 + num_prefix))
    ids = prefix + tuple(token for part in parts for token in part.token_ids)
    return Layout(ids, num_prefix, tuple(parts), None)


def fill(kv: SequenceKV, wanted: Layout) -> None:
    for start, stop in kv.missing():
        kv.written(kv.pieces(start, wanted.token_ids[start:stop]))


def say(kv: SequenceKV, num_prompt: int, reply: tuple[int, ...]) -> None:
    kv.reserve_reply(len(reply))
    kv.written(kv.pieces(num_prompt, reply))


def test_the_next_turn_adopts_slot_suffix_and_reply_as_context() -> None:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    first = layout((1, 2), (3, 4), (5, 6))
    kv.rebuild(first, EXACT, same_turn=False)
    fill(kv, first)
    say(kv, 6, (7, 8, 9))
    second = layout((1, 2, 3, 4, 5, 6, 7, 8, 60), (3,), (5, 6))
    moves = kv.rebuild(second, EXACT, same_turn=False)
    assert moves.num_kept == 8  # the reply's third token was not heard
    assert kv.missing() == [(8, 9), (9, 10), (10, 12)]
    assert sum(count for _, _, count in moves.copies) == 6
    assert kv.num_reply_rows == 0
    kv.cache.check_integrity()
    fill(kv, second)
    assert kv.kept(second.token_ids)[0] == 12


def test_the_reply_rows_stay_while_the_prompt_stands() -> None:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    first = layout((), (3, 4), (5, 6))
    kv.rebuild(first, EXACT, same_turn=False)
    fill(kv, first)
    say(kv, 4, (7, 8, 9))
    kv.rebuild(first, EXACT, same_turn=True)
    assert kv.num_reply_rows == 3 and kv.next_position == 7
    kv.rebuild(layout((), (3, 4), (5,)), EXACT, same_turn=True)
    assert kv.num_reply_rows == 0 and kv.next_position == 3


def test_rejected_proposals_leave_no_readable_row() -> None:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    first = layout((), (3, 4), (5, 6))
    kv.rebuild(first, EXACT, same_turn=False)
    fill(kv, first)
    say(kv, 4, (7, 8, 9))
    kv.truncate(5)
    assert kv.num_reply_rows == 1
    assert sum(view.num_rows for view in kv.views([])) == 5
    kv.truncate(3)
    assert kv.missing() == [(3, 4)]


def test_a_growing_reply_doubles_its_extent_and_keeps_its_rows() -> None:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    first = layout((), (3, 4), (5, 6))
    kv.rebuild(first, EXACT, same_turn=False)
    fill(kv, first)
    say(kv, 4, tuple(range(20, 28)))
    moves = kv.reserve_reply(9)
    assert [count for _, _, count in moves.copies] == [8] and kv.num_reply_rows == 8
    assert not kv.reserve_reply(16).copies
    kv.cache.check_integrity()


def test_pieces_are_cut_at_the_borders_of_extents() -> None:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    wanted = layout((1, 2), (3,), (5, 6), num_prefix=4)
    kv.rebuild(wanted, EXACT, same_turn=False)
    assert kv.missing() == [(0, 4), (4, 6), (6, 7), (7, 9)]
    kv.reserve_reply(2)
    pieces = kv.pieces(2, (*wanted.token_ids[2:], 70))
    assert [piece.token_ids for piece in pieces] == [(102, 103), (1, 2), (3,), (5, 6), (70,)]
    assert pieces[0].extent is kv.prefix.extent and pieces[0].offset == 2  # type: ignore[union-attr]


def test_a_second_reader_finds_the_prefix_filled() -> None:
    cache = KVCache(512)
    wanted = layout((), (3,), (5,), num_prefix=4)
    first, second = (SequenceKV(cache, "", slot_rows=8) for _ in range(2))
    first.rebuild(wanted, EXACT, same_turn=False)
    fill(first, wanted)
    second.rebuild(wanted, EXACT, same_turn=False)
    assert second.missing() == [(4, 5), (5, 6)]
    first.close()
    second.clear()
    second.clear()
    cache.check_integrity()
    assert cache.num_free_rows == cache.num_rows - 4


def test_a_full_cache_changes_nothing() -> None:
    cache = KVCache(64)
    kv = SequenceKV(cache, "", slot_rows=8)
    first = layout((1, 2), (3, 4), (5, 6))
    kv.rebuild(first, EXACT, same_turn=False)
    fill(kv, first)
    free = cache.num_free_rows
    with pytest.raises(CacheFull):
        kv.rebuild(layout((1, 2), tuple(range(200)), (5, 6)), EXACT, same_turn=True)
    with pytest.raises(CacheFull):
        kv.rebuild(layout((1, 2), (3, 4), (5, 6), num_prefix=60), EXACT, same_turn=True)
    cache.check_integrity()
    assert cache.num_free_rows == free and kv.missing() == []
