"""The rows of one session: a shared prefix, an extent per part of the prompt, one for the reply.

    index (tokens of the prompt, then of the reply)
    0        P                 c                 s          p                 p + r
    | prefix | context .pad.   | slot .padding.  | suffix   | reply .padding. |
      shared   grows per turn    edited in place   per turn

An extent's readable rows are always its first ones. `rebuild` gives a new prompt its extents and
keeps what is still right; what is missing then is computed in place. Positions equal indices except
under the inexact policies (docs/engine.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llm_engine.batch import ExtentView
from llm_engine.errors import CacheFull
from llm_engine.events import SuffixPolicy
from llm_engine.kv_cache import Extent, KVCache, SharedPrefix
from llm_engine.layout import Layout
from llm_engine.relayout import Choice, Moves, Run, Span, apply, choose, num_equal


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to run that lie in one extent, from row `offset` of it on."""

    extent: Extent
    offset: int
    token_ids: tuple[int, ...]


@dataclass(slots=True, eq=False)
class SequenceKV:
    """See the module's head. `slot_rows` is the smallest extent of a slot."""

    cache: KVCache
    scope: str
    slot_rows: int
    prefix: SharedPrefix | None = None
    _spans: list[Span] = field(default_factory=list)
    _reply: Extent | None = None
    _num_prompt: int = 0  # tokens of the prompt laid out
    _reply_position: int = 0

    def __post_init__(self) -> None:
        self.cache.add_owner(self)

    # ---- what is there

    def private_extents(self) -> Iterator[Extent]:
        yield from (span.extent for span in self._spans)
        if self._reply is not None:
            yield self._reply

    def _extents(self) -> Iterator[Extent]:
        if self.prefix is not None:
            yield self.prefix.extent
        yield from self.private_extents()

    @property
    def num_private_rows(self) -> int:
        return sum(extent.capacity for extent in self.private_extents())

    @property
    def num_reply_rows(self) -> int:
        return 0 if self._reply is None else self._reply.num_rows

    @property
    def is_laid_out(self) -> bool:
        return bool(self._spans)

    @property
    def is_exact(self) -> bool:
        """No readable row was written by an inexact policy, and none will be under this layout."""
        return all(extent.exact for extent in self._extents()) and (
            self._reply_position == self._num_prompt
        )

    @property
    def next_position(self) -> int:
        """The position that follows the prompt and the reply's rows."""
        return self._reply_position + self.num_reply_rows

    def missing(self) -> list[tuple[int, int]]:
        """Index ranges of the prompt that have no rows, ascending."""
        ranges = []
        if self.prefix is not None and not self.prefix.is_filled:
            ranges.append((self.prefix.extent.num_rows, len(self.prefix.token_ids)))
        for span in self._spans:
            if span.extent.num_rows < span.length:
                ranges.append((span.start + span.extent.num_rows, span.start + span.length))
        return ranges

    def kept(self, token_ids: tuple[int, ...]) -> tuple[int, list[Run]]:
        """How many leading tokens of a prompt have exact rows already, and the runs they lie in."""
        index = 0
        runs: list[Run] = []
        for extent in self._extents():
            if not extent.exact or extent.first_position != index:
                break
            length = num_equal(extent.token_ids, token_ids, index)
            if length:
                runs.append((index, extent.first_row, length))
            index += length
            if length < extent.num_rows:
                break
        return index, runs

    # ---- a new prompt

    def rebuild(self, layout: Layout, policy: SuffixPolicy, *, same_turn: bool) -> Moves:
        """Give `layout` its extents; keep the rows up to its first changed token and, inside one
        turn under an inexact policy, those behind it. On CacheFull nothing has changed."""
        num_kept, runs = self.kept(layout.token_ids)
        prefix = self._prefix_for(layout)
        if prefix is not None and prefix is not self.prefix and not prefix.is_filled:
            num_kept = min(num_kept, prefix.extent.num_rows)
        try:
            choices, end = choose(
                self.cache,
                self._spans,
                layout,
                num_kept,
                policy,
                self.slot_rows,
                same_turn=same_turn,
            )
        except CacheFull:
            if prefix is not None and prefix is not self.prefix:
                self.cache.release_prefix(prefix)
            raise
        keep_reply = num_kept == len(layout.token_ids) == self._num_prompt
        moves = apply(choices, num_kept, runs)
        self._replace(choices, prefix)
        self._num_prompt, self._reply_position = len(layout.token_ids), end
        if self._reply is not None:
            self._place_reply(self._reply, keep_rows=keep_reply)
        return moves

    def _prefix_for(self, layout: Layout) -> SharedPrefix | None:
        if not layout.num_prefix_tokens:
            return None
        if self.prefix is not None and self.prefix.token_ids == layout.prefix_ids:
            return self.prefix
        return self.cache.acquire_prefix(self.scope, layout.prefix_ids)

    def _replace(self, choices: list[Choice], prefix: SharedPrefix | None) -> None:
        used = {id(choice.extent) for choice in choices}
        for span in self._spans:
            if id(span.extent) not in used:
                self.cache.release(span.extent)
        self._spans = [Span(c.part.key, c.start, len(c.part.token_ids), c.extent) for c in choices]
        if self.prefix is not prefix:
            if self.prefix is not None:
                self.cache.release_prefix(self.prefix)
            self.prefix = prefix

    def _place_reply(self, reply: Extent, *, keep_rows: bool) -> None:
        if not keep_rows:
            reply.truncate(0)
        reply.first_position = self._reply_position
        reply.exact = self._spans[-1].extent.exact and self._reply_position == self._num_prompt

    # ---- running tokens

    def reserve_reply(self, num_rows: int) -> Moves:
        """Make room for `num_rows` reply rows; an extent too short doubles. Raises CacheFull."""
        old = self._reply
        if old is not None and old.capacity >= num_rows:
            return Moves()
        capacity = self.slot_rows if old is None else 2 * old.capacity
        while capacity < num_rows:
            capacity *= 2
        new = self.cache.allocate(capacity, self._spans[-1].extent)
        self._reply = new
        copies: tuple[tuple[int, int, int], ...] = ()
        if old is not None:
            new.token_ids = old.token_ids
            copies = ((old.first_row, new.first_row, old.num_rows),) if old.num_rows else ()
            self.cache.release(old)
        self._place_reply(new, keep_rows=True)
        return Moves(copies=copies)

    def pieces(self, start: int, token_ids: Sequence[int]) -> list[Piece]:
        """Tokens of consecutive indices from `start` on, cut at the borders of extents."""
        pieces: list[Piece] = []
        done = 0
        while done < len(token_ids):
            extent, first, length = self._locate(start + done)
            offset = start + done - first
            stop = done + min(len(token_ids) - done, length - offset)
            pieces.append(Piece(extent, offset, tuple(token_ids[done:stop])))
            done = stop
        return pieces

    def _locate(self, index: int) -> tuple[Extent, int, int]:
        """The extent that holds `index`, its first index and its length."""
        if self.prefix is not None and index < len(self.prefix.token_ids):
            return self.prefix.extent, 0, len(self.prefix.token_ids)
        for span in self._spans:
            if span.start <= index < span.start + span.length:
                return span.extent, span.start, span.length
        assert self._reply is not None, "reserve_reply comes first"
        return self._reply, self._num_prompt, self._reply.capacity

    def views(self, pieces: Sequence[Piece]) -> tuple[ExtentView, ...]:
        """What the tokens of `pieces` may read, themselves included."""
        written = {id(piece.extent): piece.offset + len(piece.token_ids) for piece in pieces}
        views = []
        for extent in self._extents():
            num_rows = max(extent.num_rows, written.get(id(extent), 0))
            if num_rows:
                views.append(ExtentView(extent.first_row, num_rows, extent.first_position))
        return tuple(views)

    def written(self, pieces: Sequence[Piece]) -> None:
        """The pass is done: the rows of `pieces` are readable."""
        for piece in pieces:
            stop = piece.offset + len(piece.token_ids)
            piece.extent.token_ids[piece.offset : stop] = piece.token_ids

    def truncate(self, num_tokens: int) -> None:
        """Rows of index `num_tokens` and later become padding; a shared prefix stays whole."""
        for span in self._spans:
            span.extent.truncate(max(0, num_tokens - span.start))
        if self._reply is not None:
            self._reply.truncate(max(0, num_tokens - self._num_prompt))

    def clear(self) -> None:
        """Give all rows back. `rebuild` comes before the next pass. Idempotent."""
        for extent in self.private_extents():
            self.cache.release(extent)
        self._spans, self._reply = [], None
        self._num_prompt = self._reply_position = 0
        if self.prefix is not None:
            self.cache.release_prefix(self.prefix)
            self.prefix = None

    def close(self) -> None:
        self.clear()
        self.cache.remove_owner(self)
