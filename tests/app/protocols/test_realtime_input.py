"""Client events and the commands they become."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from app import messages as m
from app.protocols.realtime import RealtimeAdapter
from tests.app.protocols.wire_client import (
    DEFAULTS,
    STARTED,
    Client,
    b64,
    pcm,
    reply_events,
    speech,
    types,
)


def test_audio_becomes_float_at_16_khz(client):
    steps = [
        s for _ in range(10) for s in client.sends("input_audio_buffer.append", audio=pcm(2400))
    ]
    assert all(isinstance(step, m.AudioReceived) for step in steps)
    samples = np.concatenate([step.samples for step in steps])
    assert samples.dtype == np.float32
    assert abs(len(samples) - 16_000) < 1600  # the filter holds a little back
    assert np.allclose(samples[4000:12_000], 1000 / 32_768, atol=1e-3)


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_telephone_audio_is_understood(client, kind):
    client.updates(audio={"input": {"format": {"type": kind}}})
    steps = client.sends("input_audio_buffer.append", audio=b64(b"\xd5" * 8000))
    assert abs(sum(len(step.samples) for step in steps) - 16_000) < 1600


def test_a_large_append_is_handed_on_in_small_commands(client):
    steps = client.sends("input_audio_buffer.append", audio=pcm(24_000 * 10))
    assert len(steps) > 40
    assert max(len(step.samples) for step in steps) <= 3200


@pytest.mark.parametrize(
    ("audio", "code"),
    [
        ("not base64!", "invalid_base64"),
        (b64(b"abc"), "invalid_audio"),
        (17, "invalid_type"),
        (None, "invalid_type"),
        ("A" * (21 * 1024 * 1024), "audio_too_large"),
    ],
)
def test_bad_audio_is_a_typed_error_and_the_session_goes_on(client, audio, code):
    error = client.error("input_audio_buffer.append", audio=audio, event_id="mine")
    assert (error["code"], error["event_id"]) == (code, "mine")
    assert types(client.sends("input_audio_buffer.append", audio=pcm(4800))) == ["AudioReceived"]


def test_clearing_the_buffer_is_confirmed(client):
    client.sends("input_audio_buffer.append", audio=pcm(4800))
    assert types(client.sends("input_audio_buffer.clear")) == [
        "AudioCleared",
        "input_audio_buffer.cleared",
    ]
    assert client.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_without_turn_detection_the_client_commits_and_asks_for_the_reply(client):
    change, _ = client.updates(audio={"input": {"turn_detection": None}})
    assert (change.turn_detection, change.create_response) == ("none", False)
    client.sends("input_audio_buffer.append", audio=pcm(4800))
    assert types(client.sends("input_audio_buffer.commit")) == ["AudioCommitted"]
    assert client.sends("response.create") == []  # it waits for the words it answers
    steps = client.hears(*speech())
    assert types(steps) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "ReplyRequested",
    ]


def test_a_commit_without_speech_is_confirmed_with_an_empty_transcript(client):
    client.updates(audio={"input": {"turn_detection": None}})
    client.sends("input_audio_buffer.append", audio=pcm(4800))
    client.sends("input_audio_buffer.commit")
    events = client.hears(m.TranscriptFinal("item_9", ""))
    assert types(events)[0] == "input_audio_buffer.committed"
    assert events[-1]["transcript"] == ""


def test_a_request_carries_its_own_instructions_and_length(client):
    steps = client.sends(
        "response.create", response={"instructions": "Say hi.", "max_output_tokens": 7}
    )
    assert steps == [m.ReplyRequested("Say hi.", 7)]


def test_one_reply_may_be_text_in_a_session_that_speaks(client):
    steps = client.sends("response.create", response={"output_modalities": ["text"]})
    assert steps == [
        m.SettingsChanged(output_audio=False),
        m.ReplyRequested(None, None),
        m.SettingsChanged(output_audio=True),
    ]
    asked = m.ReplyStarted("resp_1", "item_2", None)
    spoken = [e for e in reply_events(started=asked) if not isinstance(e, m.ReplyAudio)]
    assert "response.output_text.done" in types(client.hears(*spoken))
    assert "response.output_audio.done" in types(client.hears(*reply_events()))


def test_a_second_response_at_a_time_is_refused(client):
    assert types(client.sends("response.create")) == ["ReplyRequested"]
    error = client.error("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    client.hears(*reply_events(started=m.ReplyStarted("resp_1", "item_2", None)))
    assert types(client.sends("response.create")) == ["ReplyRequested"]


def test_a_request_that_fails_does_not_block_the_next(client):
    client.sends("response.create")
    client.hears(m.ErrorReported("prompt_too_long", "9000 tokens"))
    assert types(client.sends("response.create")) == ["ReplyRequested"]


def test_a_reply_is_cancelled_by_its_id_or_without(client):
    assert client.error("response.cancel")["code"] == "response_cancel_not_active"
    client.hears(STARTED)
    assert client.error("response.cancel", response_id="other")["code"]
    assert client.sends("response.cancel", response_id="resp_1") == [m.ReplyCancelled()]
    assert client.sends("response.cancel") == [m.ReplyCancelled()]


MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi!"}]}


def test_an_item_can_be_added_retrieved_and_deleted(client):
    command, added, done = client.sends("conversation.item.create", item=MESSAGE | {"id": "mine"})
    assert command == m.MessageAdded("mine", "user", "Hi!")
    assert added["item"] == done["item"] and added["item"]["id"] == "mine"
    (event,) = client.sends("conversation.item.retrieve", item_id="mine")
    assert event["item"]["content"][0]["text"] == "Hi!"
    steps = client.sends("conversation.item.delete", item_id="mine")
    assert types(steps) == ["MessageDeleted", "conversation.item.deleted"]
    assert client.error("conversation.item.retrieve", item_id="mine")["code"] == "item_not_found"


def test_a_reply_is_truncated_to_what_was_played(client):
    client.hears(*reply_events())
    cut = {"item_id": "item_2", "content_index": 0}
    steps = client.sends("conversation.item.truncate", audio_end_ms=300, **cut)
    assert steps[0] == m.ReplyTruncated("item_2", 300)
    assert steps[1]["type"] == "conversation.item.truncated"
    assert client.hears(m.ReplyCut("item_2", 300, "It")) == []  # it was told already
    steps = client.sends("conversation.item.truncate", audio_end_ms=99_000, **cut)
    assert steps[0] == m.ReplyTruncated("item_2", 1000)


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("conversation.item.create", {"item": 3}, "invalid_type"),
        ("conversation.item.create", {"item": MESSAGE | {"role": "robot"}}, "invalid_value"),
        ("conversation.item.create", {"item": MESSAGE | {"content": []}}, "invalid_value"),
        ("conversation.item.create", {"item": {"type": "function_call"}}, "unsupported"),
        (
            "conversation.item.create",
            {"item": MESSAGE | {"content": [{"type": "input_audio", "audio": "AAAA"}]}},
            "unsupported",
        ),
        ("conversation.item.create", {"item": MESSAGE, "previous_item_id": "x"}, "unsupported"),
        ("conversation.item.retrieve", {"item_id": "x"}, "item_not_found"),
        ("conversation.item.delete", {"item_id": ["x"]}, "item_not_found"),
        ("conversation.item.truncate", {"item_id": "x", "audio_end_ms": 1}, "item_not_found"),
        ("response.create", {"response": {"conversation": "none"}}, "unsupported"),
        ("response.create", {"response": []}, None),
        ("response.create", {"response": {"max_output_tokens": "many"}}, "invalid_type"),
        ("forespeak.text.typed", {"text": 3}, "invalid_type"),
        ("forespeak.playback.reported", {"response_id": "r", "played_ms": -1}, "invalid_value"),
        ("session.update", {"session": None}, "invalid_type"),
        ("session.dance", {}, "unknown_event"),
    ],
)
def test_what_cannot_be_done_is_a_typed_error(client, kind, fields, code):
    if code is None:  # an empty response object asks for nothing special
        assert types(client.sends(kind, **fields)) == ["ReplyRequested"]
        return
    error = client.error(kind, event_id="e7", **fields)
    assert (error["code"], error["event_id"]) == (code, "e7")


def test_playback_is_reported_to_the_session(client):
    steps = client.sends("forespeak.playback.reported", response_id="resp_1", played_ms=320)
    assert steps == [m.PlaybackReported("resp_1", 320)]


# ---- anything may come

SESSION = {
    "type": "realtime",
    "instructions": "Be brief.",
    "output_modalities": ["audio"],
    "max_output_tokens": 50,
    "temperature": 0.5,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"language": "en", "prompt": "names", "model": "x"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
                "idle_timeout_ms": None,
                "create_response": True,
                "interrupt_response": True,
            },
        },
        "output": {"format": {"type": "audio/pcm"}, "voice": "x", "speed": 1.0},
    },
    "forespeak": {"partials": True},
}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
MESSAGES = [
    {"type": "session.update", "session": SESSION},
    {"type": "session.update", "session": SESSION | {"audio": {"input": {"turn_detection": None}}}},
    {"type": "transcription_session.update", "session": {"input_audio_format": "pcm16"}},
    {"type": "conversation.item.create", "previous_item_id": None, "item": ITEM},
    {"type": "conversation.item.retrieve", "item_id": "x"},
    {"type": "conversation.item.delete", "item_id": "x"},
    {
        "type": "conversation.item.truncate",
        "item_id": "x",
        "content_index": 0,
        "audio_end_ms": 5,
    },
    {
        "type": "response.create",
        "response": {
            "conversation": "auto",
            "output_modalities": ["text"],
            "max_output_tokens": 5,
            "instructions": "x",
            "tools": [],
        },
    },
    {"type": "response.cancel", "response_id": "x"},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "forespeak.text.typed", "text": "hi", "final": True},
    {"type": "forespeak.playback.reported", "response_id": "x", "heard_ms": 3},
]
JUNK = [None, True, 0, -1, 2.7, 1e300, "", "x", "y" * 5000, [], [[]], [{}], {}, {"x": {}}]


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every path into a message."""
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path] * bool(path) + [p for key, item in inner for p in places(item, (*path, key))]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["type"])
def test_a_value_of_any_type_anywhere_is_answered_and_never_raised(message):
    for path in places(message):
        for junk in JUNK:
            spoilt = copy.deepcopy(message)
            target = spoilt
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = junk
            client = Client(speaks_ga=message["type"] != "transcription_session.update")
            client.opens()
            for step in client.raw(json.dumps(spoilt)):
                if isinstance(step, dict) and step["type"] == "error":
                    assert len(json.dumps(step)) < 4000, "an error repeats what it was sent"


# ---- cancelling early


def test_a_reply_is_cancelled_before_it_has_begun(client):
    client.sends("response.create")
    assert client.sends("response.cancel") == [m.ReplyCancelled()]


def test_a_reply_that_waits_for_its_words_is_cancelled_when_they_are_there(client):
    client.updates(audio={"input": {"turn_detection": None}})
    client.sends("input_audio_buffer.append", audio=base64.b64encode(bytes(48_000)).decode())
    client.sends("input_audio_buffer.commit")
    assert client.sends("response.create") == []
    assert client.sends("response.cancel") == []
    steps = client.hears(m.TranscriptFinal("item_1", "hello"))
    commands = [step for step in steps if not isinstance(step, dict)]
    assert commands == [m.ReplyRequested(), m.ReplyCancelled()]


def test_instructions_that_are_refused_are_not_shown_as_in_effect(client):
    client.updates(instructions="far too long")
    events = client.hears(m.ErrorReported("instructions_too_long", "9000 tokens"))
    assert types(events) == ["error", "session.updated"]
    assert events[1]["session"]["instructions"] == "Be brief."


def test_nothing_of_a_change_that_the_session_refused_is_shown_as_in_effect(client):
    before = client.updates()[-1]["session"]
    client.updates(
        instructions="be rude",
        max_output_tokens=7,
        audio={"input": {"turn_detection": {"type": "server_vad"}}},
    )
    events = client.hears(m.ErrorReported("settings_refused", "the engine is given a rest"))
    assert types(events) == ["error", "session.updated"]
    assert events[1]["session"] == before


def test_a_language_that_the_recogniser_does_not_know_is_refused():
    defaults = replace(DEFAULTS, languages=("de", "en"))
    adapter = RealtimeAdapter("7", defaults)
    for language, kind in (("xx-klingon", "error"), ("de", "session.updated")):
        session = {
            "type": "realtime",
            "audio": {"input": {"transcription": {"language": language}}},
        }
        steps = adapter.receive(json.dumps({"type": "session.update", "session": session}))
        assert steps[-1]["type"] == kind


def test_a_first_update_that_fails_does_not_settle_the_shape(client):
    assert client.error("session.update", session=5)["code"] == "invalid_type"
    client.speaks_ga = False
    (updated,) = (
        step
        for step in client.sends("session.update", session={"modalities": ["text"]})
        if isinstance(step, dict)
    )
    assert updated["session"]["modalities"] == ["text"]


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("response.cancel", {"response_id": "resp_9"}, ["resp_1", "resp_9"]),
        ("response.create", {}, ["resp_1"]),
        ("conversation.item.create", {"item": 3}, ["3"]),
        ("conversation.item.create", {"item": MESSAGE | {"role": "robot"}}, ["robot", "assistant"]),
        ("conversation.item.create", {"item": MESSAGE | {"content": "Hi"}}, ["Hi", "list"]),
        ("conversation.item.create", {"item": MESSAGE, "previous_item_id": "x"}, ["'x'", "item_2"]),
        ("forespeak.text.typed", {"text": 3}, ["text must be a string", "3"]),
        ("forespeak.text.typed", {"text": "x", "final": "no"}, ["final must be a boolean", "no"]),
        ("forespeak.text.typed", {"text": "x" * 10_001}, ["10001", "10000"]),
        ("forespeak.playback.reported", {"response_id": 4}, ["response_id must be a string", "4"]),
        ("forespeak.playback.reported", {"response_id": "r", "played_ms": "2 s"}, ["2 s", "ms"]),
    ],
)
def test_an_error_names_the_value_and_what_would_be_right(client, kind, fields, said):
    client.hears(STARTED)
    message = client.error(kind, **fields)["message"]
    assert all(words in message for words in said), message


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ({"input": ["x"]}, ["response.input", "'x'"]),
        ({"conversation": "none"}, ["response.conversation 'none'", "'auto'"]),
        ({"instructions": 5}, ["response.instructions must be a string", "5"]),
        (["x"], ["response must be an object", "x"]),
    ],
)
def test_an_error_in_a_request_names_the_value_and_what_would_be_right(client, response, said):
    message = client.error("response.create", response=response)["message"]
    assert all(words in message for words in said), message


def test_cancelling_where_nothing_runs_says_so(client):
    assert "no response is being made" in client.error("response.cancel")["message"]
    named = client.error("response.cancel", response_id="resp_9")["message"]
    assert "no response" in named and "resp_9" in named
