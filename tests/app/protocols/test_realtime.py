"""The Realtime adapter as a whole: beginnings, and messages that are no events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.protocols.wire_client import Client, reply_events, speech, types


def test_a_session_begins_with_its_settings():
    (event,) = Client().adapter.open()
    session = event["session"]
    assert event["type"] == "session.created"
    assert session["instructions"] == "Be brief." and session["model"] == "tiny"
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{not json", "invalid_json"),
        ("[1]", "invalid_json"),
        ("", "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        (b"\x00\x01", "binary_message"),
        ('{"type": 3}', "unknown_event"),
        ("{}", "unknown_event"),
        ('{"type": ["session.update"]}', "unknown_event"),
        (r'{"type": "bogus", "event_id": "\udfff"}', "invalid_text"),
        (r'{"type": "bogus", "event_id": "\ud83d\ude00"}', "unknown_event"),
    ],
)
def test_messages_that_are_no_events_are_typed_errors(client, message, code):
    (event,) = client.raw(message)
    assert event["error"]["code"] == code
    assert types(client.updates(instructions="on we go")) == ["SettingsChanged", "session.updated"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["session", "audio", "input", "output", "format", "type", "item", "content", "text"]
                + ["turn_detection", "item_id", "audio_end_ms", "response", "forespeak", "rate"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=6,
)
KINDS = [
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "conversation.item.create",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
    "transcription_session.update",
    "forespeak.text.typed",
    "forespeak.playback.reported",
]


@given(
    kind=st.sampled_from(KINDS),
    fields=st.dictionaries(st.sampled_from(["session", "item", "response", "audio"]), JSON),
    is_beta=st.booleans(),
)
def test_no_event_of_any_shape_breaks_the_adapter(kind, fields, is_beta):
    client = Client(is_beta=is_beta, speaks_ga=False)
    client.raw(json.dumps(fields | {"type": kind}))
    client.hears(*speech(), *reply_events())
