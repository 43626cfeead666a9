"""Clients that speak the beta's names."""

from __future__ import annotations

from tests.app.protocols.wire_client import Client, reply_events, speech, types


def test_a_beta_client_is_answered_in_beta_names():
    client = Client(speaks_ga=False)
    client.adapter.open()
    change, updated = client.sends(
        "session.update",
        session={
            "modalities": ["text", "audio"],
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "g711_alaw",
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
            "temperature": 0.8,
            "max_response_output_tokens": 50,
        },
    )
    assert (change.turn_detection, change.silence_ms) == ("server_vad", 300)
    assert (change.temperature, change.max_reply_tokens) == (0.8, 50)
    session = updated["session"]
    assert session["modalities"] == ["text", "audio"] and "audio" not in session
    assert session["input_audio_format"] == "g711_ulaw"
    assert session["output_audio_format"] == "g711_alaw"
    assert session["max_response_output_tokens"] == 50
    kinds = types(client.hears(*speech(), *reply_events()))
    assert {"conversation.item.created", "response.audio.delta"} <= set(kinds)
    assert {"response.audio_transcript.done", "response.content_part.done"} <= set(kinds)
    assert not any("output_audio" in kind or kind == "conversation.item.done" for kind in kinds)


def test_the_beta_header_decides_before_the_first_update():
    (event,) = Client(is_beta=True).adapter.open()
    assert event["session"]["input_audio_format"] == "pcm16"


def test_the_betas_transcription_sessions_never_reply():
    client = Client(speaks_ga=False)
    change, event = client.sends(
        "transcription_session.update",
        session={"input_audio_format": "pcm16", "input_audio_transcription": {"language": "en"}},
    )
    assert change.create_response is False and change.language == "en"
    assert event["type"] == "transcription_session.updated"
