"""Conversation → prompt segments, through the model's own chat template.

The template is rendered with a sentinel in place of every text that comes from a caller or client
and split at the control tokens it wrote itself; only then are the texts put in, and each run
between two control tokens is tokenised as one text by a tokenizer that knows no control tokens. So
the ids equal `apply_chat_template` for harmless text, and a text that spells `<|im_end|>` stays a
text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Literal

from llm_engine.prompt import Segment, SegmentRole
from llm_engine.template import Hole, Piece, Shape, Skeletons, segment_keys
from llm_engine.tokenizer import Tokenizer

_MAX_RUNS = 512  # tokenised runs kept: earlier messages are not tokenised again


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["user", "assistant", "system"]
    text: str


class ChatTemplate:
    """Makes prompt segments for one model.

    `now` is what the template's clock shows, for the whole life of this object: a prompt must not
    change because a day ends. Raises NoChatTemplate.
    """

    def __init__(self, tokenizer: Tokenizer, *, now: datetime | None = None) -> None:
        self._skeletons = Skeletons(tokenizer, now or datetime.now())
        self._encode = lru_cache(_MAX_RUNS)(tokenizer.encode_with_ends)

    def segments(
        self,
        system: str,
        history: Sequence[ChatMessage],
        slot: str,
        *,
        before: str = "",
        after: str = "",
    ) -> tuple[Segment, ...]:
        """The prompt for a reply to the user message `before + slot + after`.

        Segments in order: "system" (prefix; only where `system` is not blank), "history.0" … one
        per message, "header" (all between the last message and the caller's words), "slot" (the
        caller's words, possibly without a token), "suffix" (up to where the reply begins). A token
        that straddles a border belongs to the later segment.

        Raises TemplateRejected, TemplateRewritesText.
        """
        before, slot, after = map(_without_surrogates, (before, slot, after))
        messages = [ChatMessage("system", system)] if system.strip() else []
        messages += [*history, ChatMessage("user", before + slot + after)]
        texts = [_without_surrogates(message.text) for message in messages]
        shape = Shape(
            tuple(message.role for message in messages),
            tuple(None if text.strip() else text for text in texts),
        )
        keys = segment_keys(shape.roles)
        parts: list[Piece] = []
        for part in self._skeletons.of(shape):
            if isinstance(part, Piece):
                parts.append(part)
            elif part.index < len(keys):
                (text,) = _trimmed(texts[part.index : part.index + 1], part)
                parts.append(Piece(text, None, keys[part.index]))
            else:
                pieces = _trimmed((before, slot, after), part)
                owners = ("header", "slot", "suffix")
                parts += [Piece(t, None, owner) for t, owner in zip(pieces, owners, strict=True)]
        return self._tokenise(parts)

    def _tokenise(self, parts: Sequence[Piece]) -> tuple[Segment, ...]:
        ids: dict[str, list[int]] = {part.owner: [] for part in parts}  # in order of appearance
        follows_control = False
        for control_id, group in groupby(parts, key=lambda part: part.control_id):
            run = list(group)
            if control_id is not None:
                for part in run:
                    ids[part.owner].append(control_id)
                follows_control = True
                continue
            borders = list(accumulate(len(part.text) for part in run))
            tokens, ends = self._encode(
                "".join(part.text for part in run), continues=follows_control
            )
            place = 0
            for token, end in zip(tokens, ends, strict=True):
                place = max(place, min(bisect_left(borders, end), len(run) - 1))
                ids[run[place].owner].append(token)
        return tuple(
            Segment(owner, _role(owner, is_first=index == 0), tuple(tokens))
            for index, (owner, tokens) in enumerate(ids.items())
            if tokens or owner == "slot"
        )


def _role(name: str, *, is_first: bool) -> SegmentRole:
    if name in ("slot", "suffix"):
        return "slot" if name == "slot" else "suffix"
    return "prefix" if name == "system" and is_first else "history"


def _trimmed(pieces: Sequence[str], hole: Hole) -> list[str]:
    """The pieces of one text, trimmed at its two ends as the template would."""
    text = "".join(pieces)
    start = len(text) - len(text.lstrip(_strip_characters(hole.left_trim)))
    end = len(text.rstrip(_strip_characters(hole.right_trim)))
    borders = list(accumulate(map(len, pieces)))
    starts = [0, *borders[:-1]]
    return [text[max(a, start) : min(b, end)] for a, b in zip(starts, borders, strict=True)]


def _strip_characters(trim: str) -> str | None:
    return None if len(trim) == 2 else trim  # both kinds went: it strips all white space


def _without_surrogates(text: str) -> str:
    """Lone surrogates (from broken JSON escapes) have no UTF-8 form: shown as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
