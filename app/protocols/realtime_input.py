"""Client events of OpenAI Realtime, one function each: checked, then the session's commands.

Every function yields steps in order and raises ProtocolError before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app import messages as m
from app.protocols.errors import ProtocolError
from app.protocols.realtime_beta import is_beta_shape
from app.protocols.realtime_fields import checked, max_tokens, modalities, object_at
from app.protocols.realtime_items import read_item
from app.protocols.realtime_state import (
    RealtimeState,
    ResponseRequest,
    Step,
    item_events,
    truncated_event,
)
from app.protocols.wire_audio import AudioDecoder, decode_base64

MAX_APPEND_BYTES = 15 * 1024 * 1024 * 3 // 4  # 15 MiB as base64
MIN_COMMIT_MS = 100  # as OpenAI: less than this is no utterance
COMMAND_SAMPLES = 3200  # 200 ms per AudioReceived, so that a large append does not block others
MAX_TYPED_CHARS = 10_000

_Fields = dict[str, Any]
Handler = Callable[[RealtimeState, _Fields], Iterator[Step]]


def _on_session_update(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    given = event.get("session")
    is_transcription_beta = event["type"] == "transcription_session.update"
    if is_transcription_beta and isinstance(given, dict):
        given = given | {"type": "transcription"}
    settings, change = state.settings.updated(given)
    if not state.is_shape_known:
        state.is_beta = is_transcription_beta or is_beta_shape(given)
        state.is_shape_known = True
    if (change.instructions, change.temperature, change.max_reply_tokens) != (None, None, None):
        state.settings_before = state.settings  # these the session may refuse
    if settings.input_type != state.settings.input_type:
        state.decoder = AudioDecoder(settings.input_format)
    state.settings = settings
    if change != m.SettingsChanged():
        yield change
    yield state.session_event("session.updated")


def _on_audio_append(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    data = decode_base64(event.get("audio"), max_bytes=MAX_APPEND_BYTES, param="audio")
    samples = state.decoder.push(data)
    state.num_samples_buffered += len(data) // state.decoder.format.bytes_per_sample
    for start in range(0, len(samples), COMMAND_SAMPLES):
        yield m.AudioReceived(samples[start : start + COMMAND_SAMPLES])


def _on_audio_commit(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    buffered_ms = state.num_samples_buffered * 1000 // state.decoder.format.rate_hz
    if buffered_ms < MIN_COMMIT_MS:
        raise ProtocolError(
            "input_audio_buffer_commit_empty",
            f"the buffer holds {buffered_ms} ms of audio; at least {MIN_COMMIT_MS} are needed",
        )
    state.num_samples_buffered = 0
    state.num_commits_open += 1
    yield m.AudioCommitted()


def _on_audio_clear(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    state.num_samples_buffered = 0
    yield m.AudioCleared()
    yield {"type": "input_audio_buffer.cleared"}


def _on_item_create(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    item = read_item(event.get("item"), state.new_id("item"), state.items)
    wanted = event.get("previous_item_id")
    if wanted is not None and wanted != state.items.last_id:
        raise ProtocolError(
            "unsupported",
            f"items are added at the end, after {state.items.last_id!r}, not after {wanted!r:.80}",
            "previous_item_id",
        )
    previous = state.items.add(item)
    yield m.MessageAdded(item.item_id, item.role, item.text or "")
    yield from item_events(item, previous)


def _on_item_retrieve(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    item = state.items.find(event.get("item_id"))
    yield {"type": "conversation.item.retrieved", "item": item.rendered()}


def _on_item_truncate(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    item = state.items.find(event.get("item_id"))
    end_ms = event.get("audio_end_ms")
    if item.role != "assistant" or item.medium != "audio":
        raise ProtocolError("invalid_value", f"{item.item_id!r} is no spoken reply", "item_id")
    if (index := event.get("content_index", 0)) != 0:
        raise ProtocolError(
            "invalid_value", f"replies have one part, 0, not {index!r:.40}", "content_index"
        )
    if isinstance(end_ms, bool) or not isinstance(end_ms, int) or end_ms < 0:
        raise ProtocolError("invalid_value", f"not a time in ms: {end_ms!r:.40}", "audio_end_ms")
    end_ms = min(end_ms, item.sent_ms)  # a player's clock may run past the end
    state.acknowledged_cut = (item.item_id, end_ms)
    yield m.ReplyTruncated(item.item_id, end_ms)
    yield truncated_event(item.item_id, end_ms)


def _on_item_delete(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    item = state.items.find(event.get("item_id"))
    if item.status == "in_progress":
        raise ProtocolError("item_in_progress", f"{item.item_id!r} is being made", "item_id")
    state.items.remove(item.item_id)
    if item.text:  # the session keeps no empty messages
        yield m.MessageDeleted(item.item_id)
    yield {"type": "conversation.item.deleted", "item_id": item.item_id}


def _on_response_create(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    if state.reply is not None or state.request is not None:
        raise ProtocolError(
            "conversation_already_has_active_response",
            f"{_running(state)}: cancel it or wait for its response.done",
        )
    given = object_at(event.get("response") or {}, "response")
    for name, harmless in (("conversation", "auto"), ("input", None), ("tools", [])):
        if given.get(name) not in (None, harmless):
            known = "nothing else" if harmless is None else f"only {harmless!r}"
            raise ProtocolError(
                "unsupported",
                f"response.{name} {given[name]!r:.80} is not supported, {known} is",
                f"response.{name}",
            )
    instructions = given.get("instructions")
    if instructions is not None:
        instructions = checked(instructions, str, "response.instructions")
    tokens = given.get("max_output_tokens", given.get("max_response_output_tokens"))
    if tokens is not None:
        tokens = max_tokens(tokens, "response.max_output_tokens")
    wanted = given.get("output_modalities", given.get("modalities"))
    speaks = state.settings.speaks
    if wanted is not None:
        speaks = modalities(wanted, "response.output_modalities")
    state.request = ResponseRequest(m.ReplyRequested(instructions, tokens), speaks)
    yield from state.send_request()


def _on_response_cancel(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    wanted, request = event.get("response_id"), state.request
    if state.reply is None and request is not None and wanted is None:
        if request.is_sent:
            yield m.ReplyCancelled()
        request.is_cancelled = True
        return
    if state.reply is None or wanted not in (None, state.reply.reply_id):
        named = "" if wanted is None else f", not {wanted!r:.80}"
        raise ProtocolError("response_cancel_not_active", _running(state) + named)
    yield m.ReplyCancelled()


def _on_output_clear(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    yield m.ReplyCancelled()


def _on_typed(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    text, final = event.get("text"), event.get("final", False)
    text, final = checked(text, str, "text"), checked(final, bool, "final")
    if len(text) > MAX_TYPED_CHARS:
        raise ProtocolError(
            "text_too_long", f"{len(text)} characters; limit {MAX_TYPED_CHARS}", "text"
        )
    if final and text.strip():
        state.typed.append(text.strip())
    yield m.TextTyped(text, final)


def _on_playback(state: RealtimeState, event: _Fields) -> Iterator[Step]:
    reply_id = checked(event.get("response_id"), str, "response_id")
    played_ms = event.get("played_ms")
    if isinstance(played_ms, bool) or not isinstance(played_ms, int) or played_ms < 0:
        raise ProtocolError("invalid_value", f"not a time in ms: {played_ms!r:.40}", "played_ms")
    yield m.PlaybackReported(reply_id, played_ms)


def _running(state: RealtimeState) -> str:
    if state.reply is not None:
        return f"response {state.reply.reply_id!r} is being made"
    return "no response is being made" if state.request is None else "a response was asked for"


HANDLERS: dict[str, Handler] = {
    "session.update": _on_session_update,
    "transcription_session.update": _on_session_update,
    "input_audio_buffer.append": _on_audio_append,
    "input_audio_buffer.commit": _on_audio_commit,
    "input_audio_buffer.clear": _on_audio_clear,
    "conversation.item.create": _on_item_create,
    "conversation.item.retrieve": _on_item_retrieve,
    "conversation.item.truncate": _on_item_truncate,
    "conversation.item.delete": _on_item_delete,
    "response.create": _on_response_create,
    "response.cancel": _on_response_cancel,
    "output_audio_buffer.clear": _on_output_clear,
    "forespeak.text.typed": _on_typed,
    "forespeak.playback.reported": _on_playback,
}
