"""Who owns which KV rows. Pure accounting: no tensor is touched here.

    row:      free, or inside exactly one extent
    extent:   [first_row, first_row + num_rows)              written, readable by attention
              [first_row + num_rows, first_row + capacity)   padding: owned, masked
    owners:   a private extent belongs to one `SequenceKV`; a shared prefix belongs to the cache and
              is read by `num_readers` sequences; with no reader it stays until its rows are needed
    sums:     free + private + shared = num_rows

Free rows are kept as maximal runs, so extents can grow where their neighbour left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from llm_engine.errors import CacheFull


@dataclass(slots=True, eq=False)
class Extent:
    """A run of rows reserved for one piece of a prompt; `token_ids` are those of its readable rows.

    `exact` is False once any of its rows was not computed from precisely the tokens before it.
    """

    first_row: int
    capacity: int
    first_position: int = 0
    token_ids: list[int] = field(default_factory=list)
    exact: bool = True

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    def truncate(self, num_rows: int) -> None:
        """Rows from `num_rows` on become padding. Idempotent."""
        del self.token_ids[num_rows:]


class RowAllocator:
    """Hands out runs of rows: next to a wished row if possible, else the smallest run that fits."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_free = num_rows
        self._runs: list[tuple[int, int]] = [(0, num_rows)]  # (first row, length), ascending

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._runs)

    def allocate(self, num_rows: int, near: int | None = None) -> int:
        """First row of a run of `num_rows`. Raises CacheFull."""
        index = self._find(num_rows, near)
        if index is None:
            raise CacheFull(num_rows, self.num_free)
        first, length = self._runs[index]
        if length == num_rows:
            del self._runs[index]
        else:
            self._runs[index] = (first + num_rows, length - num_rows)
        self.num_free -= num_rows
        return first

    def _find(self, num_rows: int, near: int | None) -> int | None:
        if near is not None:
            index = bisect_left(self._runs, (near, 0))
            if index < len(self._runs):
                first, length = self._runs[index]
                if first == near and length >= num_rows:
                    return index
        fitting = (
            (length, index) for index, (_, length) in enumerate(self._runs) if length >= num_rows
        )
        best = min(fitting, default=None)
        return None if best is None else best[1]

    def free(self, first_row: int, num_rows: int) -> None:
        """Give a run back; it merges with its free neighbours."""
        index = bisect_left(self._runs, (first_row, 0))
        assert index == len(self._runs) or self._runs[index][0] >= first_row + num_rows, (
            "freed twice"
        )
        self.num_free += num_rows
        if index < len(self._runs) and self._runs[index][0] == first_row + num_rows:
            num_rows += self._runs[index][1]
            del self._runs[index]
        if index > 0 and sum(self._runs[index - 1]) >= first_row:
            before, length = self._runs[index - 1]
            assert before + length == first_row, "freed twice"
            self._runs[index - 1] = (before, length + num_rows)
        else:
            self._runs.insert(index, (first_row, num_rows))


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """The first tokens of many prompts, computed once. Whoever runs first fills its extent."""

    scope: str
    token_ids: tuple[int, ...]
    extent: Extent
    num_readers: int = 0
    last_used: int = 0

    @property
    def is_filled(self) -> bool:
        return self.extent.num_rows == len(self.token_ids)


class Owner(Protocol):
    """What the cache must know of a sequence to check its own books."""

    @property
    def prefix(self) -> SharedPrefix | None: ...

    def private_extents(self) -> Iterable[Extent]: ...


class KVCache:
    """Extents and shared prefixes over one arena of `num_rows` rows."""

    def __init__(self, num_rows: int) -> None:
        self._rows = RowAllocator(num_rows)
        self._prefixes: dict[tuple[str, tuple[int, ...]], SharedPrefix] = {}
        self._owners: list[Owner] = []
        self._uses = 0

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def num_free_rows(self) -> int:
        return self._rows.num_free

    @property
    def num_shared_rows(self) -> int:
        return sum(prefix.extent.capacity for prefix in self._prefixes.values())

    def add_owner(self, owner: Owner) -> None:
        self._owners.append(owner)

    def remove_owner(self, owner: Owner) -> None:
        self._owners.remove(owner)

    def allocate(self, capacity: int, near: Extent | None = None) -> Extent:
        """A new private extent, right behind `near` if that is free. Raises CacheFull.

        Prefixes that nobody reads give way, the longest unused first.
        """
        wish = None if near is None else near.first_row + near.capacity
        while True:
            try:
                return Extent(self._rows.allocate(capacity, wish), capacity)
            except CacheFull:
                if not self._evict_prefix():
                    raise

    def release(self, extent: Extent) -> None:
        self._rows.free(extent.first_row, extent.capacity)

    def acquire_prefix(self, scope: str, token_ids: tuple[int, ...]) -> SharedPrefix:
        """The shared prefix of these tokens in `scope`, new if there is none. Raises CacheFull."""
        prefix = self._prefixes.get((scope, token_ids))
        if prefix is None:
            prefix = SharedPrefix(scope, token_ids, self.allocate(len(token_ids)))
            self._prefixes[scope, token_ids] = prefix
        prefix.num_readers += 1
        return prefix

    def release_prefix(self, prefix: SharedPrefix) -> None:
        prefix.num_readers -= 1
        self._uses += 1
        prefix.last_used = self._uses

    def _evict_prefix(self) -> bool:
        unread = [prefix for prefix in self._prefixes.values() if prefix.num_readers == 0]
        if not unread:
            return False
        oldest = min(unread, key=lambda prefix: prefix.last_used)
        del self._prefixes[oldest.scope, oldest.token_ids]
        self.release(oldest.extent)
        return True

    def check_integrity(self) -> None:
        """Assert the invariants at the head of this file."""
        taken: list[tuple[int, int]] = list(self._rows.runs)
        for (first, length), (following, _) in zip(taken, taken[1:], strict=False):
            assert first + length < following, "free runs touch or overlap"
        assert sum(length for _, length in taken) == self._rows.num_free
        extents = [prefix.extent for prefix in self._prefixes.values()]
        for owner in self._owners:
            extents += owner.private_extents()
        for extent in extents:
            assert 0 <= extent.num_rows <= extent.capacity, f"{extent} holds more than it owns"
        taken += [(extent.first_row, extent.capacity) for extent in extents]
        taken.sort()
        row = 0
        for first, length in taken:
            assert first == row, f"row {min(first, row)} is owned twice or by nobody"
            row = first + length
        assert row == self.num_rows, f"rows from {row} on are owned by nobody"
        for prefix in self._prefixes.values():
            readers = sum(owner.prefix is prefix for owner in self._owners)
            assert readers == prefix.num_readers, f"{readers} readers, {prefix.num_readers} counted"
            expected = list(prefix.token_ids[: prefix.extent.num_rows])
            assert prefix.extent.token_ids == expected, "a shared prefix holds other tokens"
            assert prefix.extent.exact and prefix.extent.first_position == 0
