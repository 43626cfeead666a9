"""Messages of the recogniser: what a listener asks its worker for, and what it tells the app.

All times are audio time: seconds (or samples at 16 kHz) since the session's first sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Word:
    """One recognised word. Times and confidence are None where they were not asked for."""

    text: str
    start_s: float | None = None
    end_s: float | None = None
    probability: float | None = None


# ---- listener -> worker


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRequest:
    """Transcribe one stretch of speech. Finals go before turn checks, those before partials."""

    utterance: int
    revision: int  # rises with every request of the session
    samples: np.ndarray  # [N] float32 mono 16 kHz, speech only; read-only
    start_s: float  # audio time of samples[0]
    kind: Literal["partial", "pause", "segment"]  # of a segment that stays open, it may be dropped
    language: str | None = None
    hot_words: str | None = None
    num_hypotheses: int = 1
    word_times: bool = False  # fill `DecodeResult.words`, about 15 % more work
    draft: str = ""  # a likely text: right, it saves time; the result never depends on it


@dataclass(frozen=True, slots=True, eq=False)
class TurnCheckRequest:
    """Ask Smart Turn how complete the utterance sounds."""

    utterance: int
    revision: int
    samples: np.ndarray  # [N] float32 mono 16 kHz, at most the last 8 s


AsrRequest = DecodeRequest | TurnCheckRequest


# ---- worker -> listener


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """`text` is empty where the guards found no speech.

    `alternatives` are further close hypotheses.
    """

    utterance: int
    revision: int
    text: str
    words: tuple[Word, ...] = ()
    log_probability: float = 0.0  # mean per token
    no_speech_probability: float = 0.0
    language: str | None = None  # asked for or detected; None: the model knows only one
    alternatives: tuple[str, ...] = ()
    dropped: bool = False  # stale, and never decoded
    error: str | None = None  # the recogniser failed; the listener goes on


@dataclass(frozen=True, slots=True)
class TurnCheckResult:
    utterance: int
    revision: int
    probability: float | None  # None: the check failed, or was stale


AsrResult = DecodeResult | TurnCheckResult


# ---- listener -> app


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    utterance: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """The soft pause: speech seems to have stopped; the utterance may still go on."""

    utterance: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    utterance: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """The newest hypothesis of the running utterance.

    `stable` words are likely, not certain, to stay.

    `at_pause` marks the decode made at the soft pause: it is the final transcript unless speech
    resumes. `text` is the whole hypothesis in display form, `prompt_text` its normal form for
    prompts.
    """

    utterance: int
    revision: int
    stable: str
    tentative: str
    text: str
    prompt_text: str
    at_pause: bool
    end_s: float  # audio time up to which it was decoded
    alternatives: tuple[str, ...] = ()  # prompt texts of further close hypotheses
    language: str | None = None
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """The EOU decision, exactly once per utterance.

    `transcript` None: nothing intelligible was said.
    """

    utterance: int
    at_s: float  # audio time of the decision
    speech_end_s: float  # audio time at which the last speech window ended
    transcript: Transcript | None
    reason: str  # which rule decided, e.g. "likely", "hard_bound", "server_vad", "commit"


@dataclass(frozen=True, slots=True)
class AsrFailed:
    """A decode failed; the utterance goes on with what there is."""

    utterance: int
    message: str


ListenerEvent = (
    SpeechStarted
    | SpeechPaused
    | SpeechResumed
    | Transcript
    | UtteranceEnded
    | AsrFailed
    | DecodeRequest
    | TurnCheckRequest
)
