"""`session.update` of OpenAI Realtime, in GA and beta shape ↔ the session's settings.

Field tables: openai-python `types/realtime/realtime_session_create_request.py`. What this server
cannot do is refused with a typed error; what is harmless to ignore (voice names, noise reduction,
tracing) is ignored, and `session.updated` shows the values in effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.messages import RESET, SettingsChanged
from app.protocols.errors import ProtocolError
from app.protocols.realtime_beta import from_beta
from app.protocols.realtime_fields import (
    checked,
    max_tokens,
    modalities,
    number,
    object_at,
    whole_number,
)
from app.protocols.wire_audio import WireFormat

PCM24K = WireFormat("pcm16", 24_000)
FORMATS = {"audio/pcm": PCM24K, "audio/pcmu": WireFormat("mulaw", 8_000)}
FORMATS["audio/pcma"] = WireFormat("alaw", 8_000)
LOGPROBS = "item.input_audio_transcription.logprobs"
EXTENSIONS = ("partials", "draft", "metrics")


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """What a session starts with, shown in `session.created`."""

    model: str = "forespeak"
    transcription_model: str = "whisper"
    voice: str = "default"
    instructions: str = ""
    temperature: float = 0.0
    max_reply_tokens: int = 160
    languages: tuple[str, ...] = ()  # that the recogniser can be told; empty: any


@dataclass(frozen=True, slots=True)
class WireSettings:
    """The client's view of its session. Frozen: `updated` makes a new one."""

    defaults: SessionDefaults
    kind: str = "realtime"  # or "transcription"
    instructions: str = ""
    temperature: float = 0.0
    max_reply_tokens: int = 160
    speaks: bool = True
    input_type: str = "audio/pcm"
    output_type: str = "audio/pcm"
    transcribes: bool = True
    has_logprobs: bool = False  # in the transcripts of what the caller says
    language: str | None = None
    hot_words: str | None = None
    turn_detection: dict[str, Any] | None = None  # as shown to the client; None: the client commits
    extensions: frozenset[str] = frozenset()

    @classmethod
    def initial(cls, defaults: SessionDefaults) -> WireSettings:
        return cls(
            defaults,
            instructions=defaults.instructions,
            temperature=defaults.temperature,
            max_reply_tokens=defaults.max_reply_tokens,
            turn_detection=_shown_turn_detection({"type": "semantic_vad"}),
        )

    @property
    def input_format(self) -> WireFormat:
        return FORMATS[self.input_type]

    @property
    def output_format(self) -> WireFormat:
        return FORMATS[self.output_type]

    def updated(self, session: object) -> tuple[WireSettings, SettingsChanged]:
        """The settings after `session.update`, and what changed for the session.

        Raises ProtocolError naming the first bad field; nothing has changed then.
        """
        fields = from_beta(object_at(session, "session"))
        settings, change = _read_top(self, fields)
        audio = object_at(fields.get("audio") or {}, "session.audio")
        settings, change = _read_input(settings, change, audio.get("input"))
        output = object_at(audio.get("output") or {}, "session.audio.output")
        if output.get("format") is not None:
            output_type = _format(output["format"], "session.audio.output.format")
            settings = replace(settings, output_type=output_type)
        settings = _read_extensions(settings, fields.get("forespeak"))
        if settings.kind == "transcription":
            change = replace(change, create_response=False)
        elif self.kind == "transcription" and change.create_response is None:
            detection = settings.turn_detection or {"create_response": False}
            change = replace(change, create_response=detection["create_response"])
        return settings, change

    def refused(self, before: WireSettings) -> WireSettings:
        """What holds when the session did not take the change from `before`: what the adapter does
        itself (formats, what is shown) stays as it is now."""
        return replace(
            self,
            kind=before.kind,
            instructions=before.instructions,
            temperature=before.temperature,
            max_reply_tokens=before.max_reply_tokens,
            speaks=before.speaks,
            language=before.language,
            hot_words=before.hot_words,
            turn_detection=before.turn_detection,
        )

    def rendered(self, session_id: str) -> dict[str, Any]:
        """The session object of `session.created` and `session.updated`, GA shape."""
        transcription = {"model": self.defaults.transcription_model}
        if self.language:
            transcription["language"] = self.language
        if self.hot_words:
            transcription["prompt"] = self.hot_words
        audio: dict[str, Any] = {
            "input": {
                "format": _shown_format(self.input_type),
                "transcription": transcription if self.transcribes else None,
                "noise_reduction": None,
                "turn_detection": self.turn_detection,
            }
        }
        shown: dict[str, Any] = {
            "type": self.kind,
            "object": "realtime.session",
            "id": session_id,
            "audio": audio,
            "include": [LOGPROBS] if self.has_logprobs else None,
        }
        if self.extensions:
            shown["forespeak"] = dict.fromkeys(sorted(self.extensions), True)
        if self.kind == "transcription":
            return shown
        audio["output"] = {
            "format": _shown_format(self.output_type),
            "voice": self.defaults.voice,
            "speed": 1.0,
        }
        return shown | {
            "model": self.defaults.model,
            "instructions": self.instructions,
            "output_modalities": ["audio"] if self.speaks else ["text"],
            "max_output_tokens": self.max_reply_tokens,
            "temperature": self.temperature,
            "tools": [],
            "tool_choice": "none",
            "truncation": "auto",
        }


# ---- reading


def _read_top(
    settings: WireSettings, fields: dict[str, Any]
) -> tuple[WireSettings, SettingsChanged]:
    kind = fields.get("type", settings.kind)
    if kind not in ("realtime", "transcription"):
        raise ProtocolError("invalid_value", f"unknown session type {kind!r}", "session.type")
    if fields.get("tools"):
        raise ProtocolError("unsupported", "this server calls no tools", "session.tools")
    settings = replace(settings, kind=kind)
    change = SettingsChanged()
    if fields.get("instructions") is not None:
        text = checked(fields["instructions"], str, "session.instructions")
        settings = replace(settings, instructions=text)
        change = replace(change, instructions=text)
    if fields.get("temperature") is not None:
        value = float(number(fields["temperature"], 0.0, 2.0, "session.temperature"))
        settings = replace(settings, temperature=value)
        change = replace(change, temperature=value)
    if fields.get("max_output_tokens") is not None:
        tokens = max_tokens(fields["max_output_tokens"], "session.max_output_tokens")
        settings = replace(settings, max_reply_tokens=tokens)
        change = replace(change, max_reply_tokens=tokens)
    if "include" in fields:
        wanted = _include(fields["include"])
        if wanted != settings.has_logprobs:
            change = replace(change, word_times=wanted)
        settings = replace(settings, has_logprobs=wanted)
    if fields.get("output_modalities") is not None:
        speaks = modalities(fields["output_modalities"], "session.output_modalities")
        settings = replace(settings, speaks=speaks)
        change = replace(change, output_audio=speaks)
    return settings, change


def _read_input(
    settings: WireSettings, change: SettingsChanged, given: object
) -> tuple[WireSettings, SettingsChanged]:
    param = "session.audio.input"
    fields = object_at(given or {}, param)
    if fields.get("format") is not None:
        was_telephone = settings.input_format.is_telephone
        settings = replace(settings, input_type=_format(fields["format"], f"{param}.format"))
        is_telephone = settings.input_format.is_telephone
        if is_telephone != was_telephone:
            change = replace(change, is_telephone=is_telephone)
    if "transcription" in fields:
        wanted = fields["transcription"]
        settings = replace(settings, transcribes=wanted is not None)
        wanted = object_at(wanted or {}, f"{param}.transcription")
        if "language" in wanted:
            language = wanted["language"]
            if language is not None:
                language = _language(settings, language, f"{param}.transcription.language")
            settings = replace(settings, language=language)
            change = replace(change, language=RESET if language is None else language)
        if "prompt" in wanted:
            words = wanted["prompt"]
            if words is not None:
                words = checked(words, str, f"{param}.transcription.prompt")
            settings = replace(settings, hot_words=words)
            change = replace(change, hot_words=RESET if words is None else words)
    if "turn_detection" in fields:
        return _read_turn_detection(settings, change, fields["turn_detection"])
    return settings, change


def _read_turn_detection(
    settings: WireSettings, change: SettingsChanged, given: object
) -> tuple[WireSettings, SettingsChanged]:
    param = "session.audio.input.turn_detection"
    if given is None:  # the client commits, and asks for the reply itself
        settings = replace(settings, turn_detection=None)
        return settings, replace(
            change, turn_detection="none", vad_threshold=RESET, create_response=False
        )
    shown = _shown_turn_detection(object_at(given, param))
    kind = shown["type"]
    change = replace(
        change,
        turn_detection=kind,
        create_response=checked(shown["create_response"], bool, f"{param}.create_response"),
        interrupt_response=checked(
            shown["interrupt_response"], bool, f"{param}.interrupt_response"
        ),
    )
    if kind == "server_vad":
        silence_ms = whole_number(
            shown["silence_duration_ms"], 50, 10_000, f"{param}.silence_duration_ms"
        )
        for name in ("prefix_padding_ms", "idle_timeout_ms"):  # shown, and of no effect here
            if shown[name] is not None:
                whole_number(shown[name], 0, 600_000, f"{param}.{name}")
        change = replace(
            change,
            silence_ms=silence_ms,
            vad_threshold=float(number(shown["threshold"], 0.0, 1.0, f"{param}.threshold")),
        )
    else:
        eagerness = shown["eagerness"]
        if eagerness not in ("low", "medium", "high", "auto"):
            raise ProtocolError(
                "invalid_value", f"unknown eagerness {eagerness!r}", f"{param}.eagerness"
            )
        change = replace(change, eagerness=eagerness, vad_threshold=RESET)
    return replace(settings, turn_detection=shown), change


def _shown_turn_detection(given: dict[str, Any]) -> dict[str, Any]:
    common = {"create_response": True, "interrupt_response": True}
    kind = given.get("type")
    if kind == "server_vad":
        own: dict[str, Any] = {"threshold": 0.5, "prefix_padding_ms": 300}
        own |= {"silence_duration_ms": 500, "idle_timeout_ms": None}
    elif kind == "semantic_vad":
        own = {"eagerness": "auto"}
    else:
        raise ProtocolError(
            "invalid_value",
            f"unknown turn detection {kind!r}",
            "session.audio.input.turn_detection.type",
        )
    known = own | common
    return {"type": kind} | known | {k: v for k, v in given.items() if k in known and v is not None}


def _read_extensions(settings: WireSettings, given: object) -> WireSettings:
    if given is None:
        return settings
    fields = object_at(given, "session.forespeak")
    for name, is_on in fields.items():
        if name not in EXTENSIONS:
            raise ProtocolError(
                "invalid_value",
                f"unknown extension {name!r}; known: {', '.join(EXTENSIONS)}",
                f"session.forespeak.{name}",
            )
        checked(is_on, bool, f"session.forespeak.{name}")
    wanted = {name for name in EXTENSIONS if fields.get(name, name in settings.extensions)}
    return replace(settings, extensions=frozenset(wanted))


def _include(given: object) -> bool:
    """Whether log probabilities are asked for; there is nothing else to include."""
    names = [] if given is None else checked(given, list, "session.include")
    for index, name in enumerate(names):
        if name != LOGPROBS:
            raise ProtocolError(
                "invalid_value",
                f"cannot include {name!r:.80}; known: {LOGPROBS}",
                f"session.include[{index}]",
            )
    return bool(names)


def _language(settings: WireSettings, value: object, param: str) -> str:
    language = checked(value, str, param)
    known = settings.defaults.languages
    if known and language not in known:
        raise ProtocolError(
            "invalid_value", f"unknown language {language!r}; known: {', '.join(known)}", param
        )
    return language


def _format(value: object, param: str) -> str:
    fields = object_at(value, param)
    kind, rate_hz = fields.get("type"), fields.get("rate")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise ProtocolError(
            "invalid_value",
            f"unknown format {kind!r}; known: {', '.join(FORMATS)}",
            f"{param}.type",
        )
    wanted_hz = FORMATS[kind].rate_hz
    if rate_hz is not None and rate_hz != wanted_hz:
        raise ProtocolError(
            "invalid_value", f"{kind} has a rate of {wanted_hz}, not {rate_hz!r}", f"{param}.rate"
        )
    return kind


def _shown_format(kind: str) -> dict[str, Any]:
    return {"type": kind, "rate": 24_000} if kind == "audio/pcm" else {"type": kind}
