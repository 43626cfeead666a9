"""Who guesses the next reply tokens, for one forward pass to verify.

A guess costs a little and changes nothing but speed: verification keeps exactly what the model
would have chosen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

_END = -1  # between two sequences: no token has this id
_FIRST_GUESS = 0.5  # acceptance assumed before any was measured
_OLD_WEIGHT = 0.85  # of the running acceptance, per observation
_PROBE_EVERY = 16  # steps without a proposal after which one token is tried again


class Proposer(Protocol):
    """Guesses how a reply goes on."""

    def propose(self, context_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Up to `max_tokens` tokens that may follow `context_ids` (prompt and reply so far)."""


class NgramPool:
    """Remembers a session's drafts and its prompt; goes on as they did after the same words.

    The longest end of the context that occurs anywhere decides (up to `max_match` tokens), among
    equals the newest draft; the prompt comes last. A search of 8,192 tokens takes tens of
    microseconds, so that no index is kept. (Prompt lookup decoding, Saxena 2023, over drafts.)

    `max_tokens`: memory; the oldest drafts are forgotten first.
    """

    def __init__(self, max_tokens: int = 4096, *, min_match: int = 1, max_match: int = 8) -> None:
        if max_tokens < 1 or not 1 <= min_match <= max_match:
            raise ValueError(f"NgramPool({max_tokens=}, {min_match=}, {max_match=})")
        self._max_tokens = max_tokens
        self._min_match = min_match
        self._max_match = max_match
        self._drafts: deque[tuple[int, ...]] = deque()  # newest first
        self._num_tokens = 0
        self._prompt: tuple[int, ...] = ()
        self._joined: npt.NDArray[np.int64] | None = None  # all of it, made when searched

    @property
    def num_tokens(self) -> int:
        """Tokens of drafts held."""
        return self._num_tokens

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember a draft, as the newest; of one longer than the memory, its end."""
        draft = tuple(token_ids)[-self._max_tokens :]
        if not draft or (self._drafts and self._drafts[0] == draft):
            return
        if draft in self._drafts:
            self._drafts.remove(draft)
            self._num_tokens -= len(draft)
        self._drafts.appendleft(draft)
        self._num_tokens += len(draft)
        while self._num_tokens > self._max_tokens:
            self._num_tokens -= len(self._drafts.pop())
        self._joined = None

    def set_prompt(self, token_ids: Sequence[int]) -> None:
        """The prompt as it stands; replaces the one before. Its end is kept, `max_tokens` long."""
        self._prompt = tuple(token_ids)[-self._max_tokens :]
        self._joined = None

    def propose(self, context_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        if not context_ids or max_tokens < 1:
            return ()
        text = self._text()
        hits = np.flatnonzero(text[:-1] == context_ids[-1])
        hits = hits[text[hits + 1] != _END]  # something must follow
        num_matched = min(1, hits.size)
        for back in range(1, min(self._max_match, len(context_ids))):
            longer = hits[text[hits - back] == context_ids[-1 - back]]
            if not longer.size:
                break
            hits, num_matched = longer, back + 1
        if num_matched < self._min_match or not hits.size:
            return ()
        following = text[hits[0] + 1 : hits[0] + 1 + max_tokens].tolist()
        end = following.index(_END) if _END in following else len(following)
        return tuple(following[:end])

    def _text(self) -> npt.NDArray[np.int64]:
        if self._joined is None:
            # as many ends in front as a match looks back: an index must not wrap around
            tokens = [_END] * self._max_match
            for sequence in (*self._drafts, self._prompt):
                tokens += [*sequence, _END]
            self._joined = np.array(tokens, dtype=np.int64)
        return self._joined


class AdaptiveLength:
    """How many tokens to propose, so that most reply tokens come per unit of time.

    With acceptance a per token, n proposals yield 1 + a + … + a^n tokens in a pass that costs
    1 + n * `token_cost` passes of one token. (Leviathan et al. 2023, section 3.3, with the
    verifying pass's growth in place of the small model's cost.)
    """

    def __init__(self, max_tokens: int = 8, *, token_cost: float = 0.07) -> None:
        if max_tokens < 1 or token_cost < 0:
            raise ValueError(f"AdaptiveLength({max_tokens=}, {token_cost=})")
        self._max_tokens = max_tokens
        self._token_cost = token_cost
        self._accepted = _FIRST_GUESS
        self._tried = 1.0
        self._idle_steps = 0

    @property
    def acceptance(self) -> float:
        """Share of tried tokens that held, recent ones weighing more."""
        return self._accepted / self._tried

    def next_length(self) -> int:
        """For the step that now begins; 0: propose nothing. Tries again at times."""
        length = self._best_length()
        if length:
            self._idle_steps = 0
            return length
        self._idle_steps += 1
        return int(self._idle_steps % _PROBE_EVERY == 0)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Take note of one verification; tokens behind the first wrong one were not tried."""
        if not 0 <= num_accepted <= num_proposed:
            raise ValueError(f"{num_accepted} of {num_proposed} proposed tokens accepted")
        if not num_proposed:
            return
        num_tried = min(num_proposed, num_accepted + 1)
        self._accepted = _OLD_WEIGHT * self._accepted + num_accepted
        self._tried = _OLD_WEIGHT * self._tried + num_tried

    def _best_length(self) -> int:
        best_length, best_rate, tokens, power = 0, 1.0, 1.0, 1.0
        for length in range(1, self._max_tokens + 1):
            power *= self.acceptance
            tokens += power
            rate = tokens / (1 + length * self._token_cost)
            if rate > best_rate:
                best_length, best_rate = length, rate
        return best_length
