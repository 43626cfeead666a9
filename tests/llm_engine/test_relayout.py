"""Which rows survive a change of the prompt, and what is copied or shifted for that."""

from __future__ import annotations

from llm_engine.events import SuffixPolicy
from llm_engine.kv_cache import KVCache
from llm_engine.layout import Layout, Part
from llm_engine.relayout import Moves
from llm_engine.sequence_kv import SequenceKV


def layout(slot: tuple[int, ...], suffix: tuple[int, ...] = (50, 51, 52)) -> Layout:
    parts = (Part("context", (1, 2)), Part("slot", slot, is_slot=True), Part("suffix", suffix))
    ids = tuple(token for part in parts for token in part.token_ids)
    return Layout(ids, 0, parts, None)


def filled(slot: tuple[int, ...], policy: SuffixPolicy = SuffixPolicy.RECOMPUTE) -> SequenceKV:
    kv = SequenceKV(KVCache(512), "", slot_rows=8)
    first = layout(slot)
    kv.rebuild(first, policy, same_turn=False)
    fill(kv, first)
    return kv


def fill(kv: SequenceKV, wanted: Layout) -> None:
    for start, stop in kv.missing():
        kv.written(kv.pieces(start, wanted.token_ids[start:stop]))


def change(kv: SequenceKV, slot: tuple[int, ...], policy: SuffixPolicy) -> Moves:
    return kv.rebuild(layout(slot), policy, same_turn=True)


def test_recompute_keeps_the_rows_up_to_the_first_changed_token() -> None:
    kv = filled((10, 11, 12))
    moves = change(kv, (10, 99, 12), SuffixPolicy.RECOMPUTE)
    assert moves.num_kept == 3 and not moves.copies and not moves.shifts
    assert kv.missing() == [(3, 5), (5, 8)] and kv.is_exact


def test_words_appended_to_the_slot_are_written_in_place() -> None:
    kv = filled((10, 11))
    before = [extent.first_row for extent in kv.private_extents()]
    change(kv, (10, 11, 12, 13), SuffixPolicy.RECOMPUTE)
    assert [extent.first_row for extent in kv.private_extents()] == before
    assert kv.missing() == [(4, 6), (6, 9)]


def test_a_slot_that_outgrows_its_extent_gets_one_twice_as_large_and_only_it_is_copied() -> None:
    kv = filled(tuple(range(10, 18)))
    old = list(kv.private_extents())
    moves = change(kv, tuple(range(10, 19)), SuffixPolicy.RECOMPUTE)
    new = list(kv.private_extents())
    assert new[1].capacity == 16 and new[0] is old[0] and new[2] is old[2]
    assert moves.copies == ((old[1].first_row, new[1].first_row, 8),)
    kv.cache.check_integrity()


def test_rotate_reuses_what_stands_behind_the_edit_and_shifts_it() -> None:
    kv = filled((10, 11, 12))
    moves = change(kv, (10, 11, 12, 13, 14), SuffixPolicy.ROTATE)
    suffix = list(kv.private_extents())[2]
    assert moves.shifts == ((suffix.first_row, 3, 2),)
    assert kv.missing() == [(5, 7)] and suffix.first_position == 7
    assert not kv.is_exact and not suffix.exact
    shrunk = change(kv, (10,), SuffixPolicy.ROTATE)
    assert shrunk.shifts == ((suffix.first_row, 3, -4),) and kv.missing() == []


def test_padded_leaves_positions_as_they_are_until_the_slot_outgrows_its_extent() -> None:
    kv = filled((10, 11, 12), SuffixPolicy.PADDED)
    suffix = list(kv.private_extents())[2]
    assert suffix.first_position == 2 + 8 and not kv.is_exact
    moves = change(kv, (10, 11, 12, 13), SuffixPolicy.PADDED)
    assert not moves.shifts and kv.missing() == [(5, 6)] and suffix.first_position == 10
    change(kv, tuple(range(10, 19)), SuffixPolicy.PADDED)
    assert kv.missing() == [(5, 11), (11, 14)]  # the suffix is computed anew, once
    assert list(kv.private_extents())[2].first_position == 2 + 16


def test_an_exact_commit_reads_no_row_of_an_inexact_policy() -> None:
    for policy in (SuffixPolicy.ROTATE, SuffixPolicy.PADDED):
        kv = filled((10, 11, 12), policy)
        change(kv, (10, 11, 13), policy)
        fill(kv, layout((10, 11, 13)))
        assert not kv.is_exact
        moves = change(kv, (10, 11, 13), SuffixPolicy.RECOMPUTE)
        assert moves.num_kept == 5 and kv.missing() == [(5, 8)] and kv.is_exact


def test_nothing_inexact_outlives_its_turn() -> None:
    kv = filled((10, 11, 12))
    change(kv, (10, 11, 12, 13), SuffixPolicy.ROTATE)
    fill(kv, layout((10, 11, 12, 13)))
    moves = kv.rebuild(layout((10, 11, 12, 13)), SuffixPolicy.ROTATE, same_turn=False)
    assert moves.num_kept == 6 and kv.missing() == [(6, 9)] and kv.is_exact
