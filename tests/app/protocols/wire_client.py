"""A Realtime client without a socket: drives an adapter, checks what it is told."""

from __future__ import annotations

import base64
import json
import typing
from typing import Any

import numpy as np
from openai.types.realtime.realtime_server_event import RealtimeServerEvent

from app import messages as m
from app.protocols.realtime import RealtimeAdapter, SessionDefaults

_UNION = typing.get_args(RealtimeServerEvent)[0]
MODELS = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(_UNION)
}


def validate(event: dict[str, Any]) -> Any:
    """The event as the client's type. Extension events have none; anything else unknown fails."""
    if event["type"].startswith("forespeak."):
        return None
    return MODELS[event["type"]].model_validate(event)


DEFAULTS = SessionDefaults(model="tiny", instructions="Be brief.", max_reply_tokens=96)


class Client:
    """Drives an adapter; checks every event against the official client's types."""

    def __init__(self, *, is_beta: bool = False, speaks_ga: bool = True) -> None:
        self.adapter = RealtimeAdapter("7", DEFAULTS, is_beta=is_beta)
        self.speaks_ga = speaks_ga and not is_beta
        self.event_ids: set[str] = set()

    def _checked(self, steps: list[Any]) -> list[Any]:
        for step in steps:
            if isinstance(step, dict):
                json.dumps(step)
                assert step["event_id"] not in self.event_ids
                self.event_ids.add(step["event_id"])
                if self.speaks_ga:
                    validate(step)
        return steps

    def opens(self) -> list[Any]:
        return self._checked(self.adapter.open())

    def sends(self, kind: str, **fields: Any) -> list[Any]:
        return self.raw(json.dumps({"type": kind} | fields))

    def raw(self, message: str | bytes) -> list[Any]:
        return self._checked(self.adapter.receive(message))

    def hears(self, *events: m.ServerEvent) -> list[Any]:
        return self._checked([step for event in events for step in self.adapter.send(event)])

    def error(self, kind: str, **fields: Any) -> dict[str, Any]:
        (event,) = self.sends(kind, **fields)
        assert event["type"] == "error"
        return event["error"]

    def updates(self, **session: Any) -> list[Any]:
        return self.sends("session.update", session={"type": "realtime"} | session)


def types(steps: list[Any]) -> list[str]:
    return [step["type"] if isinstance(step, dict) else type(step).__name__ for step in steps]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pcm(num_samples: int) -> str:
    return b64(np.full(num_samples, 1000, "<i2").tobytes())


STARTED = m.ReplyStarted("resp_1", "item_2", "item_1")
TONE = np.full(24_000, 0.25, np.float32)


def reply_events(reason: Any = "completed", *, started: m.ReplyStarted = STARTED) -> list[Any]:
    return [
        started,
        m.ReplyText("resp_1", "item_2", "It is "),
        m.ReplyAudio("resp_1", "item_2", TONE, 24_000, "It is four."),
        m.ReplyText("resp_1", "item_2", "four."),
        m.ReplyFinished(
            "resp_1",
            "item_2",
            reason,
            "It is four.",
            {"prompt_tokens": 30, "cached_tokens": 20, "reply_tokens": 5},
        ),
    ]


def speech(item_id: str = "item_1", text: str = "What is two plus two?") -> list[m.ServerEvent]:
    return [
        m.UserSpeechStarted(item_id, 500),
        m.UserSpeechStopped(item_id, 1900, 1500),
        m.TranscriptFinal(item_id, text),
    ]
