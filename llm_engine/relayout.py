"""Which extents a new prompt gets, which rows it keeps, and the row work that takes. No tensors.

Exactly right stay the rows up to the first token that differs. Inside one turn an inexact policy
also takes over the rows of a part that stands unchanged behind an edit: shifted (`rotate`) or,
because the slot's padding keeps its position numbers, as they are (`padded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from llm_engine.errors import CacheFull
from llm_engine.events import SuffixPolicy
from llm_engine.kv_cache import Extent, KVCache
from llm_engine.layout import Layout, Part

ROW_GRAIN = 16  # extents that are not padded are rounded up to this
Run = tuple[int, int, int]  # first index, first row, length


@dataclass(frozen=True, slots=True)
class Moves:
    """Row work a new layout needs before the next pass: copies as one, then shifts of keys."""

    num_kept: int = 0  # leading tokens of the prompt whose rows stay exactly right
    copies: tuple[tuple[int, int, int], ...] = ()  # (from row, to row, number of rows)
    shifts: tuple[tuple[int, int, int], ...] = ()  # (first row, number of rows, positions to add)


@dataclass(slots=True)
class Span:
    """A part's tokens from index `start` on, and their rows."""

    key: str
    start: int
    length: int
    extent: Extent


@dataclass(slots=True)
class Choice:
    """What one part of the new prompt gets."""

    part: Part
    start: int
    position: int
    extent: Extent
    num_kept: int  # rows that stay exactly right
    num_reused: int  # rows taken over under an inexact policy, 0 if none
    reused_from: Extent | None
    exact: bool


def choose(
    cache: KVCache,
    spans: Sequence[Span],
    layout: Layout,
    num_kept: int,
    policy: SuffixPolicy,
    slot_rows: int,
    *,
    same_turn: bool,
) -> tuple[list[Choice], int]:
    """A choice per part of `layout`, and the position behind the last part.

    `spans` are the extents at hand, `num_kept` the leading tokens of the prompt whose rows stay
    right. New extents are allocated, old ones stay owned; on CacheFull nothing has changed.
    """
    old = {span.key: span for span in spans}
    choices: list[Choice] = []
    fresh: list[Extent] = []
    start = position = layout.num_prefix_tokens
    exact = True
    try:
        for part in layout.parts:
            length = len(part.token_ids)
            mine = old.get(part.key)
            extent = mine.extent if mine is not None else None
            kept = min(max(num_kept - start, 0), length)
            reused = 0
            if mine is not None and same_turn:  # nothing inexact outlives its turn
                reused = _num_reusable(part, mine, kept, start, position, policy)
            if extent is None or extent.capacity < length:
                near = choices[-1].extent if choices else None
                extent = cache.allocate(_capacity(part, extent, slot_rows), near)
                fresh.append(extent)
            exact = exact and not reused and position == start
            source = mine.extent if mine is not None and reused else None
            choices.append(Choice(part, start, position, extent, kept, reused, source, exact))
            start += length
            is_padded = policy is SuffixPolicy.PADDED and part.is_slot
            position += extent.capacity if is_padded else length
    except CacheFull:
        for extent in fresh:
            cache.release(extent)
        raise
    return choices, position


def apply(choices: Sequence[Choice], num_kept: int, runs: Sequence[Run]) -> Moves:
    """Set the chosen extents to what they will hold; -> the row work that makes it true.

    `runs` say where the kept tokens' rows are now.
    """
    copies: list[tuple[int, int, int]] = []
    shifts: list[tuple[int, int, int]] = []
    for choice in choices:
        extent, source = choice.extent, choice.reused_from
        copies += _copies(runs, choice.start, choice.start + choice.num_kept, extent.first_row)
        if source is None:
            continue
        first, count = choice.num_kept, choice.num_reused - choice.num_kept
        if source is not extent:
            copies.append((source.first_row + first, extent.first_row + first, count))
        if choice.position != source.first_position:
            delta = choice.position - source.first_position
            shifts.append((extent.first_row, choice.num_reused, delta))
    for choice in choices:  # only now: an extent may have been another part's source
        num_rows = max(choice.num_kept, choice.num_reused)
        choice.extent.token_ids = list(choice.part.token_ids[:num_rows])
        choice.extent.first_position = choice.position
        choice.extent.exact = choice.exact
    return Moves(num_kept, tuple(copies), tuple(shifts))


def num_equal(rows: list[int], token_ids: tuple[int, ...], start: int) -> int:
    """Length of the longest common prefix of `rows` and `token_ids[start:]`."""
    if tuple(rows) == token_ids[start : start + len(rows)]:
        return len(rows)
    pairs = zip(rows, token_ids[start:], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _num_reusable(
    part: Part, mine: Span, num_kept: int, start: int, position: int, policy: SuffixPolicy
) -> int:
    """Rows of the part's old extent that an inexact policy takes over; 0 if that would be no more
    than what is kept exactly."""
    if policy is SuffixPolicy.RECOMPUTE or (num_kept and mine.start != start):
        return 0
    if policy is SuffixPolicy.PADDED and mine.extent.first_position != position:
        return 0
    count = num_equal(mine.extent.token_ids, part.token_ids, 0)
    return count if count > num_kept else 0


def _capacity(part: Part, outgrown: Extent | None, slot_rows: int) -> int:
    """Rows for a part: a slot, and whatever outgrew its extent, gets room to double."""
    length = len(part.token_ids)
    if outgrown is None and not part.is_slot:
        return -(-length // ROW_GRAIN) * ROW_GRAIN
    capacity = slot_rows if outgrown is None else 2 * outgrown.capacity
    while capacity < length:
        capacity *= 2
    return capacity


def _copies(
    runs: Sequence[Run], start: int, stop: int, first_row: int
) -> list[tuple[int, int, int]]:
    """Copies that bring the kept rows of indices start..stop to `first_row` on."""
    copies = []
    for index, row, length in runs:
        first, last = max(index, start), min(index + length, stop)
        source, target = row + first - index, first_row + first - start
        if first < last and source != target:
            copies.append((source, target, last - first))
    return copies
