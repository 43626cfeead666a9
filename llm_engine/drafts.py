"""Reply tokens decided for one prompt, and what is worth keeping when the prompt changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_engine.detokenizer import IncrementalDetokenizer, StopMatcher
from llm_engine.tokenizer import Tokenizer

MIN_SENTENCE_TOKENS = 4  # "Sure!" alone is not worth stopping for
MAX_REMEMBERED = 4  # drafts of earlier prompts kept per turn
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """What ends a reply besides the end-of-message token."""

    max_tokens: int
    stop: tuple[str, ...]


class Draft:
    """The reply to one prompt as far as it is decided; grows by `add` until `finish` is set.

    `texts[i]` is the text that token i adds (a character is added by the token that completes it),
    `tail` what is added when the reply ends. The end-of-message token is not part of it.
    """

    def __init__(self, tokenizer: Tokenizer, limits: ReplyLimits, tie_bound: float) -> None:
        self._tokenizer, self._limits = tokenizer, limits
        self._eos_ids = tokenizer.eos_ids
        self._sentence_end_ids = tokenizer.sentence_end_ids
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._matcher = StopMatcher(limits.stop)
        self._tie_bound = tie_bound
        self._sentence_end: int | None = None
        self.token_ids: list[int] = []
        self.decided_at_s: list[float] = []
        self.is_early: list[bool] = []  # decided before the commit
        self.texts: list[str] = []
        self.tail = ""
        self.finish: FinishReason | None = None
        self.tie_index: int | None = None
        self.is_exact = True  # no token of it was read off rows of an inexact policy

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def text(self) -> str:
        return "".join(self.texts) + self.tail

    @property
    def room(self) -> int:
        """How many tokens may still be added."""
        return self._limits.max_tokens - len(self)

    @property
    def has_sentence(self) -> bool:
        """The first sentence and the token after it are there."""
        return self._sentence_end is not None and len(self) > self._sentence_end + 1

    def add(self, token_id: int, margin: float, at_s: float, *, is_early: bool) -> None:
        """The next token; may set `finish`. `margin`: score distance to the runner-up."""
        index = len(self)
        if margin < self._tie_bound and self.tie_index is None:
            self.tie_index = index
        if token_id in self._eos_ids:
            self._end("stop")
            return
        self.token_ids.append(token_id)
        self.decided_at_s.append(at_s)
        self.is_early.append(is_early)
        self.texts.append(self._matcher.push(self._detokenizer.push((token_id,))))
        if self._sentence_end is None and index + 1 >= MIN_SENTENCE_TOKENS:
            self._sentence_end = index if token_id in self._sentence_end_ids else None
        if self._matcher.is_stopped:
            self.finish = "stop"
        elif len(self) >= self._limits.max_tokens:
            self._end("length")

    def limited(self, max_tokens: int) -> Draft:
        """This reply as it stands if it may have at most `max_tokens` (>= 1) tokens."""
        fewer = min(max_tokens, self._limits.max_tokens)
        limited = Draft(self._tokenizer, replace(self._limits, max_tokens=fewer), self._tie_bound)
        limited.is_exact = self.is_exact
        known = zip(self.token_ids, self.decided_at_s, self.is_early, strict=True)
        for index, (token_id, at_s, is_early) in enumerate(known):
            if limited.finish is not None:
                return limited
            margin = 0.0 if index == self.tie_index else math.inf
            limited.add(token_id, margin, at_s, is_early=is_early)
        if self.finish is not None and limited.finish is None:
            limited._end(self.finish)
        return limited

    def _end(self, reason: FinishReason) -> None:
        self.finish = reason
        self.tail = self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Tokens that may continue the reply, to be checked; from an earlier prompt's draft."""

    token_ids: tuple[int, ...] = ()
    decided_at_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, draft: Draft) -> Candidate:
        return cls(tuple(draft.token_ids), tuple(draft.decided_at_s))

    def after(self, token_ids: Sequence[int]) -> Candidate:
        """What is left once `token_ids` were decided; nothing if they are not its beginning."""
        count = len(token_ids)
        if self.token_ids[:count] != tuple(token_ids):
            return Candidate()
        return Candidate(self.token_ids[count:], self.decided_at_s[count:])

    def then(self, rest: Candidate) -> Candidate:
        return Candidate(self.token_ids + rest.token_ids, self.decided_at_s + rest.decided_at_s)


class DraftMemory:
    """Exact drafts of one turn by prompt: a transcript that flips back finds its reply decided.

    Same prompt, same seed, same turn: same reply. So no pass is needed to take one up again.
    """

    def __init__(self) -> None:
        self._drafts: dict[tuple[int, ...], Draft] = {}

    def put(self, prompt_ids: tuple[int, ...], draft: Draft) -> None:
        if not draft.is_exact or not (draft.token_ids or draft.finish):
            return
        self._drafts.pop(prompt_ids, None)
        self._drafts[prompt_ids] = draft
        if len(self._drafts) > MAX_REMEMBERED:
            del self._drafts[next(iter(self._drafts))]

    def take(self, prompt_ids: tuple[int, ...]) -> Draft | None:
        return self._drafts.pop(prompt_ids, None)

    def clear(self) -> None:
        self._drafts.clear()
