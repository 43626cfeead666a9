"""When speech starts, pauses and resumes, and how much silence ends the utterance (pure).

All positions are samples of the stream, so that a test is a list of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from asr.audio import SAMPLE_RATE_HZ
from asr.end_model import Evidence, is_greeting, is_whole_answer, joint_probability
from asr.vad import WINDOW_SAMPLES

MIN_SPEECH_WINDOWS = 3  # fewer are clicks and blips: keeps 74 of 75 noises out and loses no speech
START_WINDOWS = 10  # within which those must come
PAUSE_WINDOWS = 2  # 64 ms below the off threshold: the soft pause
UNCLEAR_WINDOWS = 12  # noise may keep the voice score between the thresholds: a pause, too

HARD_BOUND_S = 1.5
GREETING_SILENCE_S = 1.12  # "Hello?" is mostly followed by the matter; one turn, not two


class SpeechState(Enum):
    IDLE = auto()
    SPEAKING = auto()
    PAUSED = auto()


class SpeechChange(Enum):
    STARTED = auto()
    PAUSED = auto()
    RESUMED = auto()


@dataclass(frozen=True, slots=True)
class VadThresholds:
    """Hysteresis: speech from `on`, silence below `off`; a pause is over at `on` again."""

    on: float = 0.5
    off: float = 0.35


TELEPHONE_THRESHOLDS = VadThresholds(on=0.5, off=0.25)  # the band-passed voice scores lower


class SpeechSegmenter:
    """Window probabilities in, changes of the speech state out."""

    def __init__(self, thresholds: VadThresholds) -> None:
        self.thresholds = thresholds
        self.state = SpeechState.IDLE
        self.start = 0  # first sample of the first speech window
        self.speech_end = 0  # end of the last window that was speech
        self.pause_start = 0  # first sample of the running pause
        self._speech_windows: list[int] = []  # ends of recent speech windows, while idle
        self._num_low = 0

    def push(self, probability: float, window_end: int) -> SpeechChange | None:
        is_speech = probability >= self.thresholds.on
        if self.state is SpeechState.IDLE:
            return self._push_idle(is_speech, window_end)
        if is_speech:
            self.speech_end = window_end
            self._num_low = 0
            if self.state is SpeechState.PAUSED:
                self.state = SpeechState.SPEAKING
                return SpeechChange.RESUMED
            return None
        if self.state is SpeechState.SPEAKING:
            self._num_low = self._num_low + 1 if probability < self.thresholds.off else 0
            is_unclear = window_end - self.speech_end >= UNCLEAR_WINDOWS * WINDOW_SAMPLES
            if self._num_low >= PAUSE_WINDOWS or is_unclear:
                self.state = SpeechState.PAUSED
                num_windows = max(self._num_low, 1)
                self.pause_start = window_end - num_windows * WINDOW_SAMPLES
                return SpeechChange.PAUSED
        return None

    def end(self) -> None:
        """The utterance is over; the next speech starts a new one."""
        self.state = SpeechState.IDLE
        self._speech_windows.clear()
        self._num_low = 0

    def _push_idle(self, is_speech: bool, window_end: int) -> SpeechChange | None:
        oldest = window_end - START_WINDOWS * WINDOW_SAMPLES
        self._speech_windows = [end for end in self._speech_windows if end > oldest]
        if not is_speech:
            return None
        self._speech_windows.append(window_end)
        if len(self._speech_windows) < MIN_SPEECH_WINDOWS:
            return None
        self.state = SpeechState.SPEAKING
        self.start = self._speech_windows[0] - WINDOW_SAMPLES
        self.speech_end = window_end
        self._num_low = 0
        return SpeechChange.STARTED


Eagerness = Literal["low", "medium", "high", "auto"]


@dataclass(frozen=True, slots=True)
class SilenceRule:
    """Silence required before the end, by joint probability: (least probability, seconds, name)."""

    steps: tuple[tuple[float, float, str], ...]

    @property
    def shortest_s(self) -> float:
        return self.steps[0][1]


# "medium" is the shortest mean delay that cuts no more clips than 500 ms of silence would
# (scripts/fit_endpointing.py); the others are set around it. docs/asr.md has what each costs.
SILENCE_RULES: dict[Eagerness, SilenceRule] = {
    "high": SilenceRule(((0.7, 0.16, "sure"), (0.4, 0.256, "likely"), (0.0, 0.576, "unlikely"))),
    "medium": SilenceRule(((0.85, 0.16, "sure"), (0.7, 0.256, "likely"), (0.0, 0.704, "unlikely"))),
    "low": SilenceRule(((0.9, 0.416, "sure"), (0.6, 0.8, "likely"), (0.0, 1.504, "hard_bound"))),
}
SILENCE_RULES["auto"] = SILENCE_RULES["medium"]


def required_silence(evidence: Evidence, eagerness: Eagerness) -> tuple[float, str]:
    """(seconds of silence that end the utterance, which rule says so)."""
    rule = SILENCE_RULES[eagerness]
    if evidence.text and is_whole_answer(evidence.text):
        return rule.shortest_s, "answer"
    if evidence.text and is_greeting(evidence.text):
        return max(GREETING_SILENCE_S, rule.shortest_s), "greeting"
    probability = joint_probability(evidence)
    for least, silence_s, name in rule.steps:
        if probability >= least:
            return silence_s, name
    return HARD_BOUND_S, "hard_bound"


def silence_samples(silence_s: float) -> int:
    return round(silence_s * SAMPLE_RATE_HZ)
