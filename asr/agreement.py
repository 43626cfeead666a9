"""Which words of the newest hypothesis are likely to stay: agreement over time (pure).

Nothing shown early is safe (docs/asr.md), so the split is revocable: it is computed anew from the
recent hypotheses each time and may shrink.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from asr.normal_form import normal_form

HELD_BACK_WORDS = 1  # the last word is the unstable one: it changes once what follows is heard


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    words: tuple[str, ...]  # in normal form
    end_s: float


class Agreement:
    """Stable prefix: words on which the hypotheses of at least `span_s` of audio agree.

    Counting hypotheses instead of time makes agreement meaningless when partials come fast.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._recent: deque[_Hypothesis] = deque()

    def push(self, words: list[str], end_s: float) -> int:
        """Number of leading words of `words`, decoded from audio up to `end_s`, that are stable."""
        newest = _Hypothesis(tuple(normal_form(word) for word in words), end_s)
        self._recent.append(newest)
        while len(self._recent) > 2 and self._recent[1].end_s <= end_s - self._span_s + 1e-6:
            self._recent.popleft()
        if self._recent[0].end_s > end_s - self._span_s + 1e-6:
            return 0
        num_equal = min(_common_prefix(other.words, newest.words) for other in self._recent)
        return max(0, min(num_equal, len(words) - HELD_BACK_WORDS))


def _common_prefix(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
