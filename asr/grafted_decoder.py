"""The text decoder over a short window's encoder rows and the padding grafted to them.

The padding is the same in every decode, so its keys and values are made once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asr.decoder import TextDecoder
from asr.greedy import Decoded, TokenRules, decode_greedily

GRAFT_FRAMES = 250


class GraftedDecoder:
    """
    Args:
        table: [T, D] encoder output of padding, by position.
        start: the token that starts a transcript.
        no_speech: the one that takes the place of a transcript where there was no speech.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        table: np.ndarray,
        rules: TokenRules,
        *,
        start: int,
        no_speech: int,
    ) -> None:
        self._decoder = decoder
        self._table = decoder.project(table)
        self._rules = rules
        self._start = start
        self._no_speech = no_speech

    def decode(
        self, encoded: np.ndarray, prompt: Sequence[int], max_tokens: int, draft: Sequence[int] = ()
    ) -> Decoded:
        """The text of encoder output [E, D]; `draft` saves time where it is right."""
        padding = slice(len(encoded), len(encoded) + GRAFT_FRAMES)
        memory = self._decoder.join(self._decoder.project(encoded), self._table, padding)
        room = self._decoder.max_tokens - len(prompt) - 1
        return decode_greedily(
            self._decoder.start(memory),
            self._decoder.extend,
            prompt,
            self._rules,
            min(max_tokens, room),
            draft[:room],
            keep=prompt.index(self._start),
        )

    def no_speech_probability(self, decoded: Decoded) -> float:
        scores = decoded.kept_scores
        shares = np.exp(scores - scores.max())
        return float(shares[self._no_speech] / shares.sum())
