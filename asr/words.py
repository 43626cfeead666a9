"""Word times and confidence from a decoder's alignment (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asr.events import Word

FRAME_S = 0.02  # of the encoder
FAR = 1 << 30
MIN_PROBABILITY = 1e-9


def place_words(
    split: tuple[Sequence[str], Sequence[Sequence[int]]],
    alignments: Sequence[tuple[int, int]],
    token_probabilities: Sequence[float],
    start_s: float,
) -> tuple[Word, ...]:
    """Words with times and the geometric mean of their tokens' probabilities.

    Args:
        split: texts of the words, and the token ids of each.
        alignments: (token index, encoder frame) pairs in order.
        start_s: audio time of frame 0.
    """
    first_frames: dict[int, int] = {}
    last_frames: dict[int, int] = {}
    for token, frame in alignments:
        first_frames.setdefault(token, frame)
        last_frames[token] = frame
    words: list[Word] = []
    first = 0
    for text, token_ids in zip(*split, strict=True):
        last = first + len(token_ids) - 1
        logs = [
            math.log(max(probability, MIN_PROBABILITY))
            for probability in token_probabilities[first : last + 1]
        ]
        begin = first_frames.get(first, 0)
        # neighbours share the frame in which the path moves on: it is the later word's
        end = min(last_frames.get(last, 0) + 1, first_frames.get(last + 1, FAR))
        begin_s = start_s + begin * FRAME_S
        end_s = start_s + max(begin, end) * FRAME_S
        if is_mark(text) and words:  # a mark belongs to the word before it
            before = words.pop()
            word = Word(
                before.text + text.strip(), before.start_s, before.end_s, before.probability
            )
        else:
            probability = math.exp(sum(logs) / len(logs)) if logs else None
            word = Word(text.strip(), round(begin_s, 3), round(end_s, 3), probability)
        words.append(word)
        first = last + 1
    return tuple(words)


def is_mark(text: str) -> bool:
    return not any(character.isalnum() for character in text)
