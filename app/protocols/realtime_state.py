"""What one Realtime connection remembers, and the events that both directions write."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app import messages as m
from app.protocols.realtime_items import Item, ItemLog
from app.protocols.realtime_reply import ReplyWriter
from app.protocols.realtime_settings import SessionDefaults, WireSettings
from app.protocols.wire_audio import AudioDecoder

MAX_ECHO_CHARS = 1000  # of what the client sent, in an error about it
WireEvent = dict[str, Any]
Step = m.ClientCommand | WireEvent  # a command for the session, or an event for the client


@dataclass(slots=True)
class ResponseRequest:
    """A `response.create` whose reply has not started."""

    command: m.ReplyRequested
    speaks: bool
    is_sent: bool = False
    is_cancelled: bool = False  # while it waited for the words it answers


class RealtimeState:
    """Owned by one adapter; its two directions run on the same task or take turns."""

    def __init__(self, session_id: str, defaults: SessionDefaults, *, is_beta: bool) -> None:
        self.session_id = session_id
        self.is_beta = is_beta
        self.is_shape_known = is_beta
        self.settings = WireSettings.initial(defaults)
        self.decoder = AudioDecoder(self.settings.input_format)
        self.items = ItemLog()
        self.reply: ReplyWriter | None = None
        self.request: ResponseRequest | None = None
        self.num_commits_open = 0  # commits of the client whose transcript is to come
        self.typed: deque[str] = deque(maxlen=64)  # final typed texts whose item is to come
        self.num_samples_buffered = 0
        self.speech_ms: dict[str, int] = {}  # item -> where its speech began, then how long it was
        self.settings_before = self.settings  # the last change that may be refused
        self.acknowledged_cut: tuple[str, int] | None = None
        self._numbers = itertools.count(1)

    def new_id(self, kind: str) -> str:
        return f"{kind}_{self.session_id}_c{next(self._numbers)}"

    def session_event(self, kind: str) -> WireEvent:
        return {"type": kind, "session": self.settings.rendered(self.session_id)}

    def send_request(self) -> Iterator[Step]:
        """Pass the request on, but not before the words it answers: transcripts take time."""
        request = self.request
        if request is None or request.is_sent or self.num_commits_open:
            return
        request.is_sent = True
        is_exception = request.speaks != self.settings.speaks  # for this reply only
        if is_exception:
            yield m.SettingsChanged(output_audio=request.speaks)
        yield request.command
        if request.is_cancelled:
            yield m.ReplyCancelled()
        if is_exception:
            yield m.SettingsChanged(output_audio=self.settings.speaks)


def item_events(item: Item, previous_item_id: str | None) -> Iterator[WireEvent]:
    """A finished item has joined the conversation."""
    for kind in ("conversation.item.added", "conversation.item.done"):
        yield {"type": kind, "previous_item_id": previous_item_id, "item": item.rendered()}


def truncated_event(item_id: str, end_ms: int) -> WireEvent:
    return {
        "type": "conversation.item.truncated",
        "item_id": item_id,
        "content_index": 0,
        "audio_end_ms": end_ms,
    }


def error_event(
    code: str,
    message: str,
    param: str | None = None,
    client_event_id: object = None,
    kind: str = "invalid_request_error",
) -> WireEvent:
    """`client_event_id`: the client's own id of the event that was wrong, echoed."""
    echoed = client_event_id[:MAX_ECHO_CHARS] if isinstance(client_event_id, str) else None
    if param is not None:
        param = param[:MAX_ECHO_CHARS]
    message = message if len(message) <= MAX_ECHO_CHARS else f"{message[:MAX_ECHO_CHARS]}…"
    detail = {"type": kind, "code": code, "message": message, "param": param, "event_id": echoed}
    return {"type": "error", "error": detail}
