"""The session's events as clients are told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app import messages as m
from app.protocols.realtime_settings import LOGPROBS
from asr.events import Word
from tests.app.protocols.wire_client import reply_events, speech, types


def test_an_utterance_is_told_from_start_to_transcript(client):
    events = client.hears(*speech())
    assert types(events) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    assert events[0]["audio_start_ms"] == 500 and events[1]["audio_end_ms"] == 1900
    assert events[-1]["transcript"] == "What is two plus two?"
    assert events[-1]["usage"] == {"type": "duration", "seconds": 1.0}
    assert {e["item_id"] for e in events if "item_id" in e} == {"item_1"}


def test_a_client_that_wants_no_transcript_gets_none(client):
    client.updates(audio={"input": {"transcription": None}})
    assert not any("transcription" in kind for kind in types(client.hears(*speech())))


def test_barge_in_tells_the_client_to_stop_and_what_was_heard(client):
    client.hears(*reply_events("interrupted"))
    events = client.hears(m.AudioFlushed("resp_1", "item_2"), m.ReplyCut("item_2", 400, "It is"))
    assert types(events) == ["output_audio_buffer.cleared", "conversation.item.truncated"]
    assert events[1]["audio_end_ms"] == 400
    (got,) = client.sends("conversation.item.retrieve", item_id="item_2")
    assert got["item"]["content"][0]["transcript"] == "It is"


def test_partials_drafts_and_metrics_are_sent_only_when_asked_for(client):
    events = [
        m.TranscriptChanged("item_1", 3, "What is", "two"),
        m.DraftShown("item_1", 3, "It is"),
        m.TurnMeasured("item_1", {"lead_time_ms": 120.0}),
    ]
    assert client.hears(*events) == []
    client.updates(forespeak={"partials": True, "draft": True, "metrics": True})
    partial, draft, measured = client.hears(*events)
    assert partial["type"] == "forespeak.transcript.changed"
    assert (partial["stable"], partial["tentative"], partial["revision"]) == ("What is", "two", 3)
    assert (draft["type"], draft["text"]) == ("forespeak.draft.changed", "It is")
    assert measured["type"] == "forespeak.turn.measured"
    assert measured["metrics"] == {"lead_time_ms": 120.0}
    client.updates(forespeak={"draft": False})
    assert types(client.hears(*events)) == [partial["type"], measured["type"]]


def test_typed_words_become_a_text_item(client):
    assert client.sends("forespeak.text.typed", text="Hi", final=False) == [
        m.TextTyped("Hi", False)
    ]
    client.sends("forespeak.text.typed", text=" Hi! ", final=True)
    events = client.hears(m.TranscriptFinal("item_1", "Hi!"))
    assert types(events) == ["conversation.item.added", "conversation.item.done"]
    assert events[0]["item"]["content"] == [{"type": "input_text", "text": "Hi!"}]


def test_a_transcript_says_its_language_where_the_recogniser_knows_several(client) -> None:
    *_, delta, completed = client.hears(m.TranscriptFinal("item_1", "Guten Tag.", language="de"))
    assert completed["languages"] == [{"code": "de"}] and "languages" not in delta
    assert "languages" not in client.hears(m.TranscriptFinal("item_2", "Hello."))[-1]


WORDS = (Word("Hi", 0.1, 0.3, 0.5), Word("Zoë!", 0.3, 0.6, 0.0))


def test_transcripts_have_log_probabilities_where_they_are_included(client) -> None:
    final = m.TranscriptFinal("item_1", "Hi Zoë!", WORDS)
    assert "logprobs" not in client.hears(final)[-1]
    client.updates(include=[LOGPROBS])
    *_, delta, completed = client.hears(replace(final, item_id="item_2"))
    assert completed["transcript"] == "".join(entry["token"] for entry in completed["logprobs"])
    assert completed["logprobs"] == delta["logprobs"]
    first, second = completed["logprobs"]
    assert first == {"token": "Hi", "bytes": [72, 105], "logprob": pytest.approx(-0.693, abs=1e-3)}
    assert bytes(second["bytes"]).decode() == " Zoë!" and second["logprob"] < -20


@pytest.mark.parametrize("words", [(), WORDS[:1], (Word("Hi"), Word("Zoë!"))])
def test_words_that_do_not_make_up_the_transcript_give_no_log_probabilities(client, words) -> None:
    client.updates(include=[LOGPROBS])
    assert client.hears(m.TranscriptFinal("item_1", "Hi Zoë!", words))[-1]["logprobs"] is None


def test_errors_of_the_session_reach_the_client(client):
    (event,) = client.hears(m.ErrorReported("recognition_failed", "no", None, fatal=True))
    assert event["error"]["code"] == "recognition_failed"
    assert event["error"]["type"] == "server_error"
