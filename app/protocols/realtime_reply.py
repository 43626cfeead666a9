"""One reply in OpenAI Realtime events: from `response.created` to `response.done`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from app import messages as m
from app.protocols.realtime_items import Item
from app.protocols.wire_audio import AudioEncoder, WireFormat

MAX_DELTA_MS = 500  # of audio in one event: small enough to stop between two
_STATUS = {
    "completed": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "cancelled": ("cancelled", "client_cancelled"),
    "interrupted": ("cancelled", "turn_detected"),
    "failed": ("failed", None),
}
Event = dict[str, Any]


class ReplyWriter:
    """Events of one response with one message of one part, in GA names, without event ids."""

    def __init__(self, started: m.ReplyStarted, wire_format: WireFormat, *, speaks: bool) -> None:
        self.reply_id = started.reply_id
        self.item = Item(
            started.item_id, "assistant", "audio" if speaks else "text", "", "in_progress"
        )
        self._speaks = speaks
        self._encoder = AudioEncoder(wire_format)
        self._num_bytes_sent = 0

    def start(self, previous_item_id: str | None) -> Iterator[Event]:
        yield {"type": "response.created", "response": self._response("in_progress")}
        item = self.item.rendered()
        yield self._event("response.output_item.added", with_item=False, item=item)
        yield {
            "type": "conversation.item.added",
            "previous_item_id": previous_item_id,
            "item": item,
        }
        yield self._part_event("response.content_part.added", part=self._part(""))

    def text(self, delta: str) -> Iterator[Event]:
        self.item.text = (self.item.text or "") + delta
        kind = "output_audio_transcript" if self._speaks else "output_text"
        yield self._part_event(f"response.{kind}.delta", delta=delta)

    def audio(self, event: m.ReplyAudio) -> Iterator[Event]:
        yield from self._audio_deltas(self._encoder.push(event.samples, event.sample_rate_hz))

    def flush(self) -> None:
        """The client drops what it has: so does the filter."""
        self._encoder.finish()

    def finish(self, event: m.ReplyFinished) -> Iterator[Event]:
        status, reason = _STATUS[event.reason]
        self.item.text = event.text
        if self._speaks:
            if event.reason in ("completed", "length"):
                yield from self._audio_deltas(self._encoder.finish())
            yield self._part_event("response.output_audio.done")
            yield self._part_event("response.output_audio_transcript.done", transcript=event.text)
        else:
            yield self._part_event("response.output_text.done", text=event.text)
        yield self._part_event("response.content_part.done", part=self._part(event.text))
        self.item.status = "completed" if status == "completed" else "incomplete"
        item = self.item.rendered()
        yield self._event("response.output_item.done", with_item=False, item=item)
        yield {"type": "conversation.item.done", "previous_item_id": None, "item": item}
        response = self._response(status, reason, (item,)) | {"usage": _usage(event.usage)}
        yield {"type": "response.done", "response": response}

    def _audio_deltas(self, data: bytes) -> Iterator[Event]:
        wire = self._encoder.format
        step = wire.rate_hz * wire.bytes_per_sample * MAX_DELTA_MS // 1000
        for start in range(0, len(data), step):
            chunk = data[start : start + step]
            self._num_bytes_sent += len(chunk)
            yield self._part_event(
                "response.output_audio.delta", delta=base64.b64encode(chunk).decode()
            )
        bytes_per_s = wire.rate_hz * wire.bytes_per_sample
        self.item.sent_ms = self._num_bytes_sent * 1000 // bytes_per_s

    def _part(self, text: str) -> dict[str, Any]:
        if self._speaks:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, with_item=True, content_index=0, **fields)

    def _event(self, kind: str, *, with_item: bool, **fields: Any) -> Event:
        event: Event = {"type": kind, "response_id": self.reply_id, "output_index": 0}
        if with_item:
            event["item_id"] = self.item.item_id
        return event | fields

    def _response(
        self, status: str, reason: str | None = None, output: tuple[Event, ...] = ()
    ) -> dict[str, Any]:
        details: dict[str, Any] | None = None
        if status in ("cancelled", "incomplete"):
            details = {"type": status, "reason": reason}
        elif status == "failed":
            details = {"type": status, "error": {"type": "server_error", "code": "reply_failed"}}
        return {
            "id": self.reply_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": list(output),
            "output_modalities": ["audio"] if self._speaks else ["text"],
            "usage": None,
        }


def _usage(usage: dict[str, int]) -> dict[str, Any]:
    """All tokens here are text tokens: speech is turned into text before and after the model."""
    prompt, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
    reply = usage.get("reply_tokens", 0)
    return {
        "input_tokens": prompt,
        "output_tokens": reply,
        "total_tokens": prompt + reply,
        "input_token_details": {"text_tokens": prompt, "audio_tokens": 0, "cached_tokens": cached},
        "output_token_details": {"text_tokens": reply, "audio_tokens": 0},
    }
