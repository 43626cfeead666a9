"""Protocol-neutral messages between a client's adapter and its session.

An adapter (app/protocols/) turns wire messages into `ClientCommand`s and `ServerEvent`s into wire
messages; the session knows no wire format. Audio is float32 mono here; codecs live in asr/audio.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import numpy as np

from asr.events import Word

# ---- client -> session


@dataclass(frozen=True, slots=True, eq=False)
class AudioReceived:
    samples: np.ndarray  # [N] float32 mono 16 kHz


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """The client itself decides that the utterance is over (turn detection off, push-to-talk)."""


@dataclass(frozen=True, slots=True)
class AudioCleared:
    """Forget what was heard since the last turn."""


@dataclass(frozen=True, slots=True)
class TextTyped:
    """The caller's words by keyboard: `final` False while typing, True on enter."""

    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A finished message put into the conversation by the client; it causes no reply."""

    item_id: str
    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class MessageDeleted:
    item_id: str


@dataclass(frozen=True, slots=True)
class ReplyRequested:
    """Reply now to the conversation as it stands. In this reply alone `instructions` stand in for
    the system prompt, and `max_tokens` bounds it if that is fewer than the session's."""

    instructions: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyCancelled:
    pass


@dataclass(frozen=True, slots=True)
class ReplyTruncated:
    """The client played only `heard_ms` of the reply's audio."""

    item_id: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class PlaybackReported:
    """Reply audio played so far (marks echoed by gateways, the page's player)."""

    reply_id: str
    heard_ms: int


class Reset(Enum):
    """A setting goes back to what holds where nobody sets it."""

    RESET = "reset"


RESET = Reset.RESET


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Only fields that are not None change."""

    instructions: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_reply_tokens: int | None = None
    output_audio: bool | None = None
    language: str | Reset | None = None  # reset: detected
    hot_words: str | Reset | None = None  # reset: none
    turn_detection: Literal["none", "server_vad", "semantic_vad"] | None = None
    silence_ms: int | None = None  # server_vad
    vad_threshold: float | Reset | None = None
    word_times: bool | None = None  # and the words' probabilities: some more work per final
    is_telephone: bool | None = None  # the audio comes in the telephone's band
    eagerness: Literal["low", "medium", "high", "auto"] | None = None  # semantic_vad
    create_response: bool | None = None
    interrupt_response: bool | None = None


ClientCommand = (
    AudioReceived
    | AudioCommitted
    | AudioCleared
    | TextTyped
    | MessageAdded
    | MessageDeleted
    | ReplyRequested
    | ReplyCancelled
    | ReplyTruncated
    | PlaybackReported
    | SettingsChanged
)

# ---- session -> client


@dataclass(frozen=True, slots=True)
class UserSpeechStarted:
    item_id: str  # the user message this utterance becomes
    at_ms: int


@dataclass(frozen=True, slots=True)
class UserSpeechStopped:
    """EOU was decided. `speech_end_ms` is where the speech itself ended."""

    item_id: str
    at_ms: int
    speech_end_ms: int


@dataclass(frozen=True, slots=True)
class TranscriptChanged:
    item_id: str
    revision: int
    stable: str
    tentative: str


@dataclass(frozen=True, slots=True)
class TranscriptFinal:
    """The user's message. Empty text: nothing intelligible; no reply follows."""

    item_id: str
    text: str
    words: tuple[Word, ...] = ()  # where they were asked for
    language: str | None = None  # a code such as "de"; None: typed, or the recogniser cannot tell


@dataclass(frozen=True, slots=True)
class DraftShown:
    """The draft reply as it stands; opt-in, may be replaced at any time, never spoken."""

    item_id: str  # the user message it would answer
    revision: int
    text: str


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    reply_id: str
    item_id: str
    in_reply_to: str | None


@dataclass(frozen=True, slots=True)
class ReplyText:
    reply_id: str
    item_id: str
    delta: str


@dataclass(frozen=True, slots=True, eq=False)
class ReplyAudio:
    """Spoken audio of one piece; `samples` [N] float32 mono at `sample_rate_hz`."""

    reply_id: str
    item_id: str
    samples: np.ndarray
    sample_rate_hz: int
    text: str  # the piece's text, on its first chunk; else empty


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    reply_id: str
    item_id: str
    reason: Literal["completed", "length", "cancelled", "interrupted", "failed"]
    text: str
    usage: dict[str, int] = field(default_factory=dict)  # counts of tokens


@dataclass(frozen=True, slots=True)
class AudioFlushed:
    """Stop playing the reply at once and drop what is buffered (barge-in)."""

    reply_id: str
    item_id: str


@dataclass(frozen=True, slots=True)
class ReplyCut:
    """The conversation now holds only what was heard of the reply: `text`."""

    item_id: str
    heard_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnMeasured:
    """One turn's timeline and accounting; keys are those of replay's JSON lines."""

    item_id: str
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorReported:
    """A typed error for this client; the session goes on unless `fatal`."""

    code: str
    message: str
    param: str | None = None
    fatal: bool = False


ServerEvent = (
    UserSpeechStarted
    | UserSpeechStopped
    | TranscriptChanged
    | TranscriptFinal
    | DraftShown
    | ReplyStarted
    | ReplyText
    | ReplyAudio
    | ReplyFinished
    | AudioFlushed
    | ReplyCut
    | TurnMeasured
    | ErrorReported
)
