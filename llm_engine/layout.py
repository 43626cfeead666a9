"""A snapshot as the cache sees it: shared prefix, context before the caller's words, the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_engine.prompt import Segment, Snapshot

CONTEXT = "context"  # key of the part that holds everything between prefix and first slot


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that share one extent. `key` tells the same part in the next snapshot."""

    key: str
    token_ids: tuple[int, ...]
    is_slot: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt cut into parts. `token_ids` are all of them in order, the prefix's included."""

    token_ids: tuple[int, ...]
    num_prefix_tokens: int
    parts: tuple[Part, ...]
    score_index: int | None  # of the last slot's last word token; None without one
    words_index: int | None = None  # where the words will begin, while every slot is empty

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return self.token_ids[: self.num_prefix_tokens]

    @classmethod
    def of(cls, snapshot: Snapshot, is_punctuation: Callable[[int], bool]) -> Layout:
        """Leading `prefix` segments are shared, everything up to the first slot is one part
        (history that no longer changes), each later segment is a part of its own."""
        segments = [
            segment for segment in snapshot.segments if segment.token_ids or segment.role == "slot"
        ]
        num_leading = _num_leading_prefixes(segments)
        num_prefix_tokens = sum(len(s.token_ids) for s in segments[:num_leading])
        rest = segments[num_leading:]
        slot = next((i for i, s in enumerate(rest) if s.role == "slot"), len(rest))
        context = tuple(token for segment in rest[:slot] for token in segment.token_ids)
        parts = [Part(CONTEXT, context)] if context else []
        parts += [
            Part(f"{i}:{segment.name}", segment.token_ids, segment.role == "slot")
            for i, segment in enumerate(rest[slot:])
        ]
        return cls(
            snapshot.token_ids,
            num_prefix_tokens,
            tuple(parts),
            _score_index(segments, is_punctuation),
            _words_index(segments),
        )


def _num_leading_prefixes(segments: list[Segment]) -> int:
    """How many segments are shared. Never all: the last prompt token must be the session's own."""
    count = next((i for i, s in enumerate(segments) if s.role != "prefix"), len(segments))
    if not any(s.token_ids for s in segments[count:]):
        count = max(0, count - 1)
    return count


def _words_index(segments: list[Segment]) -> int | None:
    """Where the first slot begins, if there is one and no slot holds a token."""
    slots = [i for i, segment in enumerate(segments) if segment.role == "slot"]
    if not slots or any(segments[i].token_ids for i in slots):
        return None
    return sum(len(segment.token_ids) for segment in segments[: slots[0]])


def _score_index(segments: list[Segment], is_punctuation: Callable[[int], bool]) -> int | None:
    """Index of the last slot's last token that is not punctuation."""
    end = sum(len(segment.token_ids) for segment in segments)
    for segment in reversed(segments):
        start = end - len(segment.token_ids)
        if segment.role == "slot":
            index = end - 1
            while index >= start and is_punctuation(segment.token_ids[index - start]):
                index -= 1
            return index if index >= start else None
        end = start
    return None
