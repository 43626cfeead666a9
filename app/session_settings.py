"""What one session may be asked to do differently, and how a client changes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from app.messages import Reset, SettingsChanged
from app.timeline import Prices
from asr.settings import ListenerSettings
from llm_engine.events import SessionConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Frozen: `SettingsChanged` makes a new one."""

    output_audio: bool = True
    interrupt_response: bool = True
    create_response: bool = True
    compute_ahead: bool = True  # the prompt's beginning is computed before anything is said
    speak_ahead: bool = True  # the draft's first piece is synthesised before EOU
    engine: SessionConfig = field(default_factory=SessionConfig)
    prices: Prices = field(default_factory=Prices)

    def changed(self, change: SettingsChanged) -> SessionSettings:
        sampling = self.engine.sampling
        sampling = replace(
            sampling,
            temperature=_or(change.temperature, sampling.temperature),
            top_p=_or(change.top_p, sampling.top_p),
            max_tokens=_or(change.max_reply_tokens, sampling.max_tokens),
        )
        return replace(
            self,
            engine=replace(self.engine, sampling=sampling, seed=_or(change.seed, self.engine.seed)),
            output_audio=_or(change.output_audio, self.output_audio),
            interrupt_response=_or(change.interrupt_response, self.interrupt_response),
            create_response=_or(change.create_response, self.create_response),
        )


def changed_listener(settings: ListenerSettings, change: SettingsChanged) -> ListenerSettings:
    return replace(
        settings,
        turn_detection=_or(change.turn_detection, settings.turn_detection),
        silence_ms=_or(change.silence_ms, settings.silence_ms),
        vad_threshold=_or_reset(change.vad_threshold, settings.vad_threshold),
        word_times=_or(change.word_times, settings.word_times),
        is_telephone=_or(change.is_telephone, settings.is_telephone),
        eagerness=_or(change.eagerness, settings.eagerness),
        language=_or_reset(change.language, settings.language),
        hot_words=_or_reset(change.hot_words, settings.hot_words),
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _or_reset(value: T | Reset | None, default: T | None) -> T | None:
    """The listener's settings of this kind are None where nobody sets them."""
    return None if isinstance(value, Reset) else _or(value, default)
