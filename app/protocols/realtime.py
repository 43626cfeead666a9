"""OpenAI Realtime (`/v1/realtime`) without sockets: wire messages ↔ the session's messages.

GA names; the beta's are understood, and answered in kind to clients that use them. Opt-in
extensions (`session.update` with `"forespeak": {"partials": true, "draft": true, "metrics": true}`)
add the server events `forespeak.transcript.changed`, `forespeak.draft.changed` and
`forespeak.turn.measured`; the client events `forespeak.text.typed` and
`forespeak.playback.reported` are always understood. docs/protocol.md describes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from app import messages as m
from app.protocols.errors import ProtocolError
from app.protocols.realtime_beta import to_beta
from app.protocols.realtime_input import HANDLERS
from app.protocols.realtime_output import server_steps
from app.protocols.realtime_settings import SessionDefaults
from app.protocols.realtime_state import RealtimeState, Step, WireEvent, error_event

__all__ = ["RealtimeAdapter", "SessionDefaults", "Step", "WireEvent"]


class RealtimeAdapter:
    """One connection. `receive` and `send` return what is to be done, in order: commands go to the
    session, dicts to the client. Neither raises for anything that a client does.
    """

    def __init__(
        self, session_id: str, defaults: SessionDefaults, *, is_beta: bool = False
    ) -> None:
        self._state = RealtimeState(session_id, defaults, is_beta=is_beta)

    @property
    def is_replying(self) -> bool:
        return self._state.reply is not None

    def open(self) -> list[Step]:
        """What the client is told first."""
        return self._finished([self._state.session_event("session.created")])

    def receive(self, message: str | bytes) -> list[Step]:
        """Take one WebSocket message of the client."""
        event_id: object = None
        try:
            event = _parse(message)
            event_id = event.get("event_id")
            kind = event.get("type")
            handler = HANDLERS.get(kind) if isinstance(kind, str) else None
            if handler is None:
                raise ProtocolError("unknown_event", f"unknown event type {kind!r:.80}", "type")
            return self._finished(handler(self._state, event))
        except ProtocolError as error:
            return self._finished([error_event(error.code, str(error), error.param, event_id)])

    def send(self, event: m.ServerEvent) -> list[Step]:
        """Take one event of the session."""
        return self._finished(server_steps(self._state, event))

    def _finished(self, steps: Iterable[Step]) -> list[Step]:
        """Number the events, in the names that the client speaks."""
        done: list[Step] = []
        for step in steps:
            if isinstance(step, dict):
                event = to_beta(step) if self._state.is_beta else step
                if event is not None:
                    done.append({"event_id": self._state.new_id("event")} | event)
            else:
                done.append(step)
        return done


_SURROGATE = re.compile(r"\\u[dD][89abAB-fF]")


def _parse(message: str | bytes) -> dict[str, Any]:
    if isinstance(message, bytes):
        raise ProtocolError("binary_message", f"{len(message)} bytes of binary: send JSON text")
    try:
        event = json.loads(message)
    except (ValueError, RecursionError) as cause:
        raise ProtocolError("invalid_json", f"not JSON: {cause}") from cause
    if not isinstance(event, dict):
        raise ProtocolError("invalid_json", f"not an object but {type(event).__name__}")
    if _SURROGATE.search(message) and not _is_unicode(event):
        raise ProtocolError("invalid_text", "half of a surrogate pair (\\ud800 to \\udfff) alone")
    return event


def _is_unicode(event: dict[str, Any]) -> bool:
    """JSON can spell halves of surrogate pairs, which no text can hold."""
    try:
        json.dumps(event, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
