"""What keeps invented text out of transcripts: loop cut, token bound, no-speech gates (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

FIXED_TOKENS, TOKENS_PER_S = 10, 6.0  # never reached by speech; bounds a loop's cost
MAX_WORDS_PER_S, FIXED_WORDS = 4.5, 4  # faster than this, a repetition is a loop, not speech
MIN_LOOP_WORDS = 3  # "no no no" and "5 5 5" are speech: only phrases loop at a speakable rate
MIN_LOOP_REPEATS = 3

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True, slots=True)
class SpeechGates:
    """Text is dropped where the recogniser itself doubts that there was speech.

    The VAD keeps nearly all noise away from the recogniser, so these are lenient: over a grafted
    window single words of true speech score down to -2.5, or 0.75 for no speech, but hardly both
    (docs/asr.md). The usual limits, 0.6 and -1.0, would lose "Yes".
    """

    max_no_speech_probability: float = 0.8  # above it, text must score well to stay
    min_doubtful_log_probability: float = -1.5
    min_log_probability: float = -4.5  # below it, no text stays
    suspect_no_speech_probability: float = 0.5  # above it, lone filler words are dropped, too

    def drops(self, text: str, log_probability: float, no_speech_probability: float) -> bool:
        words = [word.lower() for word in _WORD.findall(text)]
        if not words or log_probability < self.min_log_probability:
            return True
        is_doubtful = no_speech_probability > self.max_no_speech_probability
        if is_doubtful and log_probability < self.min_doubtful_log_probability:
            return True
        return words == ["you"] and no_speech_probability > self.suspect_no_speech_probability


def max_new_tokens(duration_s: float) -> int:
    return FIXED_TOKENS + round(TOKENS_PER_S * duration_s)


def cut_loops(text: str, duration_s: float) -> str:
    """`text` without the repetitions of a decoder caught in a loop.

    A run is a loop if a phrase of three words or more comes at least three times, or if any unit
    comes three times in a text longer than anyone speaks in `duration_s`. Its first unit is kept
    and all after it goes. Digit strings, spelled letters and repeated words at a speakable rate
    stay.
    """
    spans = [match.span() for match in _WORD.finditer(text)]
    words = [text[start:end].lower() for start, end in spans]
    is_too_fast = len(words) > FIXED_WORDS + MAX_WORDS_PER_S * duration_s
    for start in range(len(words)):
        for size in range(1, (len(words) - start) // MIN_LOOP_REPEATS + 1):
            if size < MIN_LOOP_WORDS and not is_too_fast:
                continue
            unit = words[start : start + size]
            run = words[start : start + size * MIN_LOOP_REPEATS]
            if run == unit * MIN_LOOP_REPEATS:
                end = spans[start + size - 1][1]
                return text[:end] + _closing_mark(text[end:])
    return text


def _closing_mark(rest: str) -> str:
    return rest[0] if rest[:1] in {".", "?", "!"} else ""
