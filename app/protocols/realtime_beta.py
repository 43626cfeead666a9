"""The Realtime beta's names and shapes, for clients that still speak them.

Everything between is GA: sessions are moved to GA shape as they come in, events renamed as they go
out. Source of the pairs: openai-python `types/beta/realtime` against `types/realtime`.
"""

from __future__ import annotations

from typing import Any

from app.protocols.realtime_fields import object_at

BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
BETA_ONLY_FIELDS = frozenset(
    (
        "modalities",
        "input_audio_format",
        "output_audio_format",
        "input_audio_transcription",
        "turn_detection",
        "temperature",
        "max_response_output_tokens",
        "voice",
        "speed",
    )
)

_RENAMED_TYPES = (
    ("response.output_audio_transcript.", "response.audio_transcript."),
    ("response.output_audio.", "response.audio."),
    ("response.output_text.", "response.text."),
)
_FORMAT_NAMES = {ga: beta for beta, ga in BETA_FORMATS.items()}


def to_beta(event: dict[str, Any]) -> dict[str, Any] | None:
    """The beta form of a GA server event, or None where the beta has no such event."""
    kind: str = event["type"]
    if kind == "conversation.item.done":
        return None
    if kind == "conversation.item.added":
        kind = "conversation.item.created"
    for ga, beta in _RENAMED_TYPES:
        if kind.startswith(ga):
            kind = beta + kind.removeprefix(ga)
    event = event | {"type": kind}
    if "item" in event:
        event["item"] = _item(event["item"])
    if "session" in event:
        if event["session"]["type"] == "transcription":
            event["type"] = "transcription_" + kind
        event["session"] = _session(event["session"])
    if "response" in event:
        event["response"] = _response(event["response"])
    return event


def _item(item: dict[str, Any]) -> dict[str, Any]:
    parts = [part | {"type": part["type"].removeprefix("output_")} for part in item["content"]]
    return item | {"content": parts}


def _response(response: dict[str, Any]) -> dict[str, Any]:
    response = response | {"output": [_item(item) for item in response["output"]]}
    names = response.pop("output_modalities")
    response.pop("audio", None)
    return response | {"modalities": ["text", "audio"] if "audio" in names else ["text"]}


def _session(session: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in session.items() if key not in ("type", "audio", "include")}
    heard = session["audio"]["input"]
    flat |= {
        "input_audio_format": _FORMAT_NAMES[heard["format"]["type"]],
        "input_audio_transcription": heard["transcription"],
        "turn_detection": heard["turn_detection"],
    }
    spoken = session["audio"].get("output")
    if spoken is not None:
        is_spoken = "audio" in flat.pop("output_modalities")
        flat |= {
            "modalities": ["text", "audio"] if is_spoken else ["text"],
            "output_audio_format": _FORMAT_NAMES[spoken["format"]["type"]],
            "voice": spoken["voice"],
            "max_response_output_tokens": flat.pop("max_output_tokens"),
        }
    return flat


def is_beta_shape(session: object) -> bool:
    """Does this `session.update` speak the names that GA moved or renamed?"""
    if not isinstance(session, dict) or "audio" in session or "type" in session:
        return False
    return not BETA_ONLY_FIELDS.isdisjoint(session)


def from_beta(session: dict[str, Any]) -> dict[str, Any]:
    """Move the beta's flat fields to where GA has them; GA sessions pass unchanged."""
    moved = {key: value for key, value in session.items() if key not in BETA_ONLY_FIELDS}
    if "modalities" in session:
        names = session["modalities"]
        is_spoken = isinstance(names, list) and "audio" in names  # the beta's ["text", "audio"]
        moved.setdefault("output_modalities", ["audio"] if is_spoken else names)
    if "max_response_output_tokens" in session:
        moved.setdefault("max_output_tokens", session["max_response_output_tokens"])
    if "temperature" in session:
        moved["temperature"] = session["temperature"]
    given = object_at(session.get("audio") or {}, "session.audio")
    audio = {
        side: dict(object_at(given.get(side) or {}, f"session.audio.{side}")) for side in given
    }
    for field, side, name in (
        ("input_audio_format", "input", "format"),
        ("input_audio_transcription", "input", "transcription"),
        ("turn_detection", "input", "turn_detection"),
        ("output_audio_format", "output", "format"),
    ):
        if field in session:
            value = session[field]
            if name == "format":
                value = (
                    {"type": BETA_FORMATS.get(value, value)} if isinstance(value, str) else value
                )
            audio.setdefault(side, {}).setdefault(name, value)
    return moved | {"audio": audio}
