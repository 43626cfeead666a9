"""Row accounting: nothing is lost, nothing is owned twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.errors import CacheFull
from llm_engine.kv_cache import Extent, KVCache, RowAllocator, SharedPrefix


@dataclass(eq=False)
class Holder:
    prefix: SharedPrefix | None = None
    extents: list[Extent] = field(default_factory=list)

    def private_extents(self) -> Iterator[Extent]:
        return iter(self.extents)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10)), max_size=80))
def test_every_row_is_free_or_owned_once(operations: list[tuple[int, int]]) -> None:
    cache, holder = KVCache(128), Holder()
    cache.add_owner(holder)
    for size, choice in operations:
        if choice < 6:
            near = holder.extents[-1] if holder.extents and choice % 2 else None
            try:
                holder.extents.append(cache.allocate(size, near))
            except CacheFull as error:
                assert error.num_rows == size
        elif holder.extents:
            cache.release(holder.extents.pop(size % len(holder.extents)))
        cache.check_integrity()
    for extent in holder.extents:
        cache.release(extent)
    holder.extents.clear()
    cache.check_integrity()
    assert cache.num_free_rows == cache.num_rows


def test_a_run_is_placed_behind_the_wished_neighbour_if_that_is_free() -> None:
    rows = RowAllocator(100)
    assert rows.allocate(10) == 0
    assert rows.allocate(10) == 10
    rows.free(0, 10)
    assert rows.allocate(5) == 0  # the smallest run that fits
    assert rows.allocate(5, near=20) == 20
    assert rows.num_free == 80


def test_freeing_twice_is_noticed() -> None:
    rows = RowAllocator(100)
    first = rows.allocate(10)
    rows.free(first, 10)
    with pytest.raises(AssertionError, match="freed twice"):
        rows.free(first, 10)


def test_a_prefix_is_shared_within_its_scope_only_and_outlives_its_readers() -> None:
    cache, first, second = KVCache(64), Holder(), Holder()
    cache.add_owner(first)
    cache.add_owner(second)
    first.prefix = cache.acquire_prefix("a", (1, 2, 3))
    second.prefix = cache.acquire_prefix("a", (1, 2, 3))
    assert first.prefix is second.prefix and first.prefix.num_readers == 2
    cache.check_integrity()
    cache.release_prefix(second.prefix)
    second.prefix = cache.acquire_prefix("b", (1, 2, 3))
    assert second.prefix is not first.prefix
    cache.check_integrity()
    cache.release_prefix(first.prefix)
    kept, first.prefix = first.prefix, None
    assert cache.acquire_prefix("a", (1, 2, 3)) is kept
    assert cache.num_shared_rows == 6


def test_unread_prefixes_give_way_the_longest_unused_first() -> None:
    cache = KVCache(32)
    old, new = cache.acquire_prefix("", (1,) * 10), cache.acquire_prefix("", (2,) * 10)
    cache.release_prefix(old)
    cache.release_prefix(new)
    holder = Holder(extents=[cache.allocate(12), cache.allocate(10)])
    cache.add_owner(holder)
    cache.check_integrity()
    assert cache.acquire_prefix("", (2,) * 10) is new
    with pytest.raises(CacheFull, match="no run of 9 KV rows is free"):
        cache.allocate(9)


def test_a_row_owned_twice_is_noticed() -> None:
    cache, holder = KVCache(32), Holder()
    cache.add_owner(holder)
    extent = cache.allocate(8)
    holder.extents = [extent, extent]
    with pytest.raises(AssertionError, match="owned twice"):
        cache.check_integrity()
    holder.extents = []
    with pytest.raises(AssertionError, match="by nobody"):
        cache.check_integrity()
