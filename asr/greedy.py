"""Greedy decoding that checks a likely text instead of writing it again (pure).

The tokens of a *draft* are read several at a time; each is kept if it is the one that would have
been chosen after those before it. So the draft changes the time but not the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

MAX_CHECKED = 8  # draft tokens in the first pass: with the prompt's two an even number
MAX_CHECKED_AFTER_MISS = 3
RESUME_WITHIN = 3  # draft tokens that may have been wrong before the two texts meet again


class State(Protocol):
    num_tokens: int

    def truncate(self, num_tokens: int) -> None: ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What may be chosen."""

    end: int
    never: Sequence[int] = ()
    never_first: Sequence[int] = ()
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Decoded:
    token_ids: tuple[int, ...]
    log_probability: float  # mean over the tokens and the end mark
    kept_scores: np.ndarray  # [V] after the prompt's token `keep`


@dataclass(slots=True)
class _Draft:
    """Where the text being written stands in the draft."""

    token_ids: Sequence[int]
    next: int = 0
    num_checked: int = MAX_CHECKED

    def proposal(self) -> list[int]:
        return list(self.token_ids[self.next : self.next + self.num_checked])

    def advance(self, token: int) -> bool:
        """Move past `token`; False where the draft said otherwise."""
        if self.next < len(self.token_ids) and self.token_ids[self.next] == token:
            self.next += 1
            self.num_checked = min(self.num_checked + 1, MAX_CHECKED)
            return True
        # the draft may lack words or have more of them, else one stands for another
        first = max(self.next - 1, 0)
        near = list(self.token_ids[first : self.next + 1 + RESUME_WITHIN])
        self.next = first + near.index(token) + 1 if token in near else self.next + 1
        self.num_checked = MAX_CHECKED_AFTER_MISS
        return False


def decode_greedily(
    state: S,
    extend: Callable[[S, Sequence[int]], np.ndarray],
    prompt: Sequence[int],
    rules: TokenRules,
    max_tokens: int,
    draft_ids: Sequence[int] = (),
    keep: int = 0,
) -> Decoded:
    """The likeliest next token, one after the other, until the end mark or `max_tokens`.

    `extend` reads tokens and returns scores [N, V] of what follows each, which must not depend on
    how many it reads at once. `state` has read none.
    """
    chosen: list[int] = []
    log_probability, is_over = 0.0, False
    draft = _Draft(draft_ids)
    scores = extend(state, [*prompt, *draft.proposal()])
    kept_scores = scores[keep].copy()
    scores = scores[len(prompt) - 1 :]
    while True:
        for row in scores:
            token, log = _choose(row, chosen, rules)
            log_probability += log
            if token == rules.end:
                is_over = True
                break
            chosen.append(token)
            if not draft.advance(token):
                break
        if is_over or len(chosen) >= max_tokens:
            break
        state.truncate(len(prompt) + len(chosen) - 1)
        scores = extend(state, [chosen[-1], *draft.proposal()])
    mean = log_probability / (len(chosen) + 1)
    return Decoded(tuple(chosen[:max_tokens]), mean, kept_scores)


def _choose(row: np.ndarray, chosen: list[int], rules: TokenRules) -> tuple[int, float]:
    """(token, its log probability); overwrites `row`."""
    row[list(rules.never)] = -np.inf
    if not chosen:
        row[list(rules.never_first)] = -np.inf
    if rules.repetition_penalty != 1.0 and chosen:
        said = list(set(chosen))
        scores = row[said]
        penalty = rules.repetition_penalty
        row[said] = np.where(scores > 0, scores / penalty, scores * penalty)
    token = int(row.argmax())
    return token, -float(np.log(np.exp(row - row[token]).sum()))
