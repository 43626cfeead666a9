"""The session's events as OpenAI Realtime server events, in GA names and without event ids."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from app import messages as m
from app.errors import PromptTooLarge, SettingsRefused
from app.protocols.realtime_items import Item
from app.protocols.realtime_reply import ReplyWriter
from app.protocols.realtime_state import (
    RealtimeState,
    Step,
    WireEvent,
    error_event,
    item_events,
    truncated_event,
)

MAX_OPEN_UTTERANCES = 64
MIN_PROBABILITY = 1e-9  # JSON has no minus infinity


def server_steps(state: RealtimeState, event: m.ServerEvent) -> Iterator[Step]:
    reply = state.reply
    match event:
        case m.UserSpeechStarted():
            yield from _on_speech_started(state, event)
        case m.UserSpeechStopped():
            yield from _on_speech_stopped(state, event)
        case m.TranscriptChanged() if "partials" in state.settings.extensions:
            yield _own("transcript.changed", event)
        case m.TranscriptFinal():
            yield from _on_transcript(state, event)
        case m.DraftShown() if "draft" in state.settings.extensions:
            yield _own("draft.changed", event)
        case m.ReplyStarted():
            yield from _on_reply_started(state, event)
        case m.ReplyText(delta=delta) if reply is not None:
            yield from reply.text(delta)
        case m.ReplyAudio() if reply is not None:
            yield from reply.audio(event)
        case m.ReplyFinished() if reply is not None:
            state.reply = None
            yield from reply.finish(event)
        case m.AudioFlushed(reply_id=reply_id):
            if reply is not None:
                reply.flush()
            yield {"type": "output_audio_buffer.cleared", "response_id": reply_id}
        case m.ReplyCut(item_id=item_id, heard_ms=heard_ms, text=text):
            item = state.items.get(item_id)
            if item is not None:
                item.text = text
            if state.acknowledged_cut != (item_id, heard_ms):
                yield truncated_event(item_id, heard_ms)
        case m.TurnMeasured() if "metrics" in state.settings.extensions:
            yield _own("turn.measured", event)
        case m.ErrorReported(code=code, message=message, param=param):
            was_request = state.request is not None and state.request.is_sent
            if was_request:
                state.request = None  # it may be what failed; another may be made
            kind = "server_error" if event.fatal else "invalid_request_error"
            yield error_event(code, message, param, None, kind)
            is_refusal = code in (PromptTooLarge.code, SettingsRefused.code)
            if is_refusal and not was_request:  # those before hold
                state.settings = state.settings.refused(state.settings_before)
                yield state.session_event("session.updated")


def _on_speech_started(state: RealtimeState, event: m.UserSpeechStarted) -> Iterator[Step]:
    state.speech_ms[event.item_id] = event.at_ms
    if len(state.speech_ms) > MAX_OPEN_UTTERANCES:  # some were cleared and never end
        del state.speech_ms[next(iter(state.speech_ms))]
    if state.settings.turn_detection is not None:
        yield {
            "type": "input_audio_buffer.speech_started",
            "audio_start_ms": event.at_ms,
            "item_id": event.item_id,
        }


def _on_speech_stopped(state: RealtimeState, event: m.UserSpeechStopped) -> Iterator[Step]:
    if state.settings.turn_detection is not None:
        yield {
            "type": "input_audio_buffer.speech_stopped",
            "audio_end_ms": event.at_ms,
            "item_id": event.item_id,
        }
    began_ms = state.speech_ms.get(event.item_id, event.speech_end_ms)
    state.speech_ms[event.item_id] = event.speech_end_ms - began_ms  # now a duration
    state.num_samples_buffered = 0
    yield from _add_heard_item(state, event.item_id)


def _add_heard_item(state: RealtimeState, item_id: str) -> Iterator[Step]:
    item = Item(item_id, "user", "audio")
    previous = state.items.add(item)
    yield {
        "type": "input_audio_buffer.committed",
        "item_id": item_id,
        "previous_item_id": previous,
    }
    yield from item_events(item, previous)


def _on_transcript(state: RealtimeState, event: m.TranscriptFinal) -> Iterator[Step]:
    item = state.items.get(event.item_id)
    if item is None and state.typed and state.typed[0] == event.text:
        state.typed.popleft()
        item = Item(event.item_id, "user", "text", event.text)
        yield from item_events(item, state.items.add(item))
        return
    if item is None:  # a commit in which no speech was found
        yield from _add_heard_item(state, event.item_id)
        item = state.items.find(event.item_id)
    item.text = event.text
    duration_ms = state.speech_ms.pop(event.item_id, 0)
    if state.settings.transcribes:
        has_logprobs = state.settings.has_logprobs
        yield from _transcription_events(event, duration_ms / 1000, has_logprobs=has_logprobs)
    if state.num_commits_open:
        state.num_commits_open -= 1
        yield from state.send_request()


def _on_reply_started(state: RealtimeState, event: m.ReplyStarted) -> Iterator[Step]:
    speaks = state.settings.speaks
    if event.in_reply_to is None and state.request is not None:
        speaks = state.request.speaks
        state.request = None
    state.reply = ReplyWriter(event, state.settings.output_format, speaks=speaks)
    previous = state.items.add(state.reply.item)
    yield from state.reply.start(previous)


def _transcription_events(
    event: m.TranscriptFinal, seconds: float, *, has_logprobs: bool
) -> Iterator[WireEvent]:
    """The whole transcript as one delta: Realtime deltas cannot be taken back, partials can."""
    part: WireEvent = {"item_id": event.item_id, "content_index": 0}
    if has_logprobs:
        part["logprobs"] = _logprobs(event)
    kind = "conversation.item.input_audio_transcription"
    if event.text:
        yield {"type": f"{kind}.delta", "delta": event.text} | part
    usage = {"type": "duration", "seconds": seconds}
    if event.language is not None:
        part["languages"] = [{"code": event.language}]
    yield {"type": f"{kind}.completed", "transcript": event.text, "usage": usage} | part


def _logprobs(event: m.TranscriptFinal) -> list[WireEvent] | None:
    """One per word; the tokens make up the transcript. None where not every word has one."""
    if " ".join(word.text for word in event.words) != event.text:
        return None
    entries: list[WireEvent] = []
    for word in event.words:
        if word.probability is None:
            return None
        token = f" {word.text}" if entries else word.text
        logprob = math.log(max(word.probability, MIN_PROBABILITY))
        entries.append({"token": token, "bytes": list(token.encode()), "logprob": logprob})
    return entries


def _own(kind: str, event: m.TranscriptChanged | m.DraftShown | m.TurnMeasured) -> WireEvent:
    """An extension event: the message's own fields."""
    return {"type": f"forespeak.{kind}"} | asdict(event)
