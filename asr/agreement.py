"""Which words of the newest hypothesis are likely to stay: agreement over time (pure).

Nothing shown early is safe (docs/asr.md), so the split is revocable: it is computed anew from the
recent hypotheses each time and may shrink.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr.normal_form import normal_form

# Counting hypotheses instead of time would make agreement meaningless when partials come fast.
SHORT_SPAN_S = 0.3  # agreement over this long holds for all but the newest words, which change
SHORT_HELD_BACK_WORDS = 2  # once what follows them is heard
LONG_SPAN_S = 0.6  # agreement over this long holds for all words
_TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    words: tuple[str, ...]  # in normal form
    end_s: float


class Agreement:
    """The stable prefix of each new hypothesis of one segment."""

    def __init__(self) -> None:
        self._recent: list[_Hypothesis] = []  # the newest older than LONG_SPAN_S, and all since

    def push(self, words: list[str], end_s: float, *, at_pause: bool = False) -> int:
        """Number of leading words of `words`, decoded from audio up to `end_s`, that are stable.

        A hypothesis `at_pause` has heard what there is to hear: all its words are.
        """
        newest = _Hypothesis(tuple(normal_form(word) for word in words), end_s)
        self._recent.append(newest)
        while len(self._recent) > 1 and self._is_older(self._recent[1], newest, LONG_SPAN_S):
            del self._recent[0]
        if at_pause:
            return len(words)
        over_short = min(self._agreed(newest, SHORT_SPAN_S), len(words) - SHORT_HELD_BACK_WORDS)
        return max(over_short, self._agreed(newest, LONG_SPAN_S), 0)

    def _agreed(self, newest: _Hypothesis, span_s: float) -> int:
        """Words on which everything heard in the last `span_s`, and just before it, agrees."""
        old = [h for h in self._recent if self._is_older(h, newest, span_s)]
        if not old:
            return 0
        since = self._recent[self._recent.index(old[-1]) :]
        return min(_common_prefix(hypothesis.words, newest.words) for hypothesis in since)

    @staticmethod
    def _is_older(hypothesis: _Hypothesis, newest: _Hypothesis, span_s: float) -> bool:
        return hypothesis.end_s <= newest.end_s - span_s + _TOLERANCE_S


def _common_prefix(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
