"""A reply, from response.created to response.done."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from app import messages as m
from tests.app.protocols.wire_client import reply_events, speech, types


def test_a_spoken_reply_is_told_from_created_to_done(client):
    client.hears(*speech())
    events = client.hears(*reply_events())
    assert types(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    audio = b"".join(base64.b64decode(e["delta"]) for e in events if "audio.delta" in e["type"])
    assert np.array_equal(np.frombuffer(audio, "<i2"), np.full(24_000, 8192))
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["usage"]["input_token_details"]["cached_tokens"] == 20
    assert response["usage"]["total_tokens"] == 35
    assert response["output"][0]["content"] == [
        {"type": "output_audio", "transcript": "It is four."}
    ]
    assert events[2]["previous_item_id"] == "item_1"


def test_a_text_reply_has_no_audio_events(client):
    client.updates(output_modalities=["text"])
    events = client.hears(*[e for e in reply_events() if not isinstance(e, m.ReplyAudio)])
    assert not any("audio" in kind for kind in types(events))
    assert [e["delta"] for e in events if e["type"] == "response.output_text.delta"] == [
        "It is ",
        "four.",
    ]
    assert events[-1]["response"]["output_modalities"] == ["text"]


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_a_reply_is_sent_in_the_format_asked_for(client, kind):
    client.updates(audio={"output": {"format": {"type": kind}}})
    events = client.hears(*reply_events())
    audio = [base64.b64decode(e["delta"]) for e in events if "audio.delta" in e["type"]]
    assert abs(len(b"".join(audio)) - 8000) <= 1  # nothing is lost in the filter


@pytest.mark.parametrize(
    ("reason", "status", "detail"),
    [
        ("length", "incomplete", "max_output_tokens"),
        ("cancelled", "cancelled", "client_cancelled"),
        ("interrupted", "cancelled", "turn_detected"),
        ("failed", "failed", None),
    ],
)
def test_a_reply_that_ends_early_says_why(client, reason, status, detail):
    response = client.hears(*reply_events(reason))[-1]["response"]
    assert response["status"] == status
    assert response["status_details"].get("reason") == detail
