from __future__ import annotations

import numpy as np

from app.reply import HeldPiece, Reply
from llm_engine.events import TurnStats
from tests.app.fakes import RATE_HZ, FakeVoice

SECOND = np.ones(RATE_HZ, np.float32)
TEXT = "It is three o'clock now. Anything else I can do?"
FIRST = "It is three o'clock now."


def parts(*, speaks: bool = True) -> tuple[FakeVoice, HeldPiece, Reply]:
    voice = FakeVoice()
    held = HeldPiece(voice, "s")
    reply = Reply(
        "r",
        "i",
        ("e", 0),
        voice,
        held,
        speaks=speaks,
        sample_rate_hz=RATE_HZ,
        num_prompt_tokens=30,
    )
    return voice, held, reply


def test_a_reply_that_is_cut_off_has_used_what_it_had_come_to() -> None:
    _, _, reply = parts()
    reply.on_delta(TEXT, 12)
    assert reply.usage == {"prompt_tokens": 30, "reply_tokens": 12}
    reply.on_generated(
        "stop", TurnStats(prompt_tokens=30, cached_prompt_tokens=20, reply_tokens=13)
    )
    assert reply.usage == {"prompt_tokens": 30, "cached_tokens": 20, "reply_tokens": 13}


def test_the_drafts_first_piece_is_synthesised_ahead_once() -> None:
    voice, held, _ = parts()
    held.on_draft(TEXT, is_complete=False)
    held.on_draft(TEXT + " Really?", is_complete=False)
    assert list(voice.spoken.values()) == [FIRST]


def test_a_draft_that_changes_its_first_piece_replaces_the_held_one() -> None:
    voice, held, _ = parts()
    held.on_draft(TEXT, is_complete=False)
    held.on_draft("It is four. Right?", is_complete=False)
    assert len(voice.cancelled) == 1 and held.piece is not None
    assert held.piece.text != FIRST


def test_the_held_piece_is_delivered_when_the_reply_begins_with_it() -> None:
    voice, held, reply = parts()
    held.on_draft(TEXT, is_complete=False)
    assert held.piece is not None
    held.piece.add(SECOND, True, now_s=0.5)
    reply.on_delta(TEXT, 12)
    (samples, text), *rest = reply.audio_to_send()
    assert text == FIRST and len(samples) == RATE_HZ and not rest
    assert reply.first_audio_ready_s == 0.5
    assert FIRST not in [voice.spoken[key] for key in voice.spoken if "held" not in key]


def test_a_held_piece_of_other_words_is_dropped() -> None:
    voice, held, reply = parts()
    held.on_draft("It is four. Right?", is_complete=False)
    key = next(iter(voice.spoken))
    reply.on_delta(TEXT, 12)
    assert voice.cancelled == [key]
    assert FIRST in voice.spoken.values()


def test_pieces_leave_in_order_even_if_a_later_one_is_ready_first() -> None:
    voice, _, reply = parts()
    reply.on_delta(TEXT, 12)
    reply.on_generated("stop", TurnStats())
    first, second = voice.spoken
    assert reply.on_chunk(second, SECOND, True, 1.0)
    assert reply.audio_to_send() == []
    assert reply.on_chunk(first, SECOND, True, 2.0)
    assert [text for _, text in reply.audio_to_send()] == [FIRST, "Anything else I can do?"]
    assert reply.is_finished


def test_audio_of_another_reply_is_not_taken() -> None:
    _, _, reply = parts()
    reply.on_delta(TEXT, 12)
    assert not reply.on_chunk("other", SECOND, True, 1.0)


def test_what_was_heard_is_cut_at_a_whole_word_and_at_whole_tokens() -> None:
    voice, _, reply = parts()
    for word in TEXT.split(" "):
        reply.on_delta(word + " ", 1)
    reply.on_generated("stop", TurnStats())
    for key in voice.spoken:
        reply.on_chunk(key, SECOND, True, 1.0)
    reply.audio_to_send()
    text, num_tokens = reply.heard_text(1500)
    assert text.startswith(FIRST) and TEXT.startswith(text) and text != TEXT
    assert num_tokens == len(text.split(" "))
    assert reply.heard_text(0) == ("", 0)
    assert reply.heard_text(2000)[0] == TEXT


def test_a_stopped_reply_cancels_what_is_not_spoken_and_counts_none_of_it_as_heard() -> None:
    voice, _, reply = parts()
    reply.on_delta(TEXT, 12)
    reply.on_generated("stop", TurnStats())
    first, second = voice.spoken
    reply.on_chunk(first, SECOND, True, 1.0)
    reply.audio_to_send()
    reply.stop()
    assert voice.cancelled == [second]
    assert reply.heard_text(1000)[0] == FIRST


def test_a_reply_that_does_not_speak_asks_the_voice_for_nothing() -> None:
    voice, _, reply = parts(speaks=False)
    reply.on_delta(TEXT, 12)
    reply.on_generated("stop", TurnStats())
    assert reply.is_finished and not voice.spoken


def test_a_held_piece_that_the_voice_dropped_is_spoken_anew() -> None:
    voice, held, reply = parts()
    held.on_draft(TEXT, is_complete=False)
    assert held.piece is not None
    held.piece.add(None, True, now_s=0.5)  # superseded, or refused by a full queue
    reply.on_delta(TEXT, 12)
    assert voice.spoken["r-0"] == FIRST
    assert reply.on_chunk("r-0", SECOND, True, 1.0)
    assert [text for _, text in reply.audio_to_send()] == [FIRST]


def test_a_held_piece_dropped_just_before_it_was_wanted_is_spoken_anew() -> None:
    voice, held, reply = parts()
    held.on_draft(TEXT, is_complete=False)
    (key,) = voice.spoken
    reply.on_delta(TEXT, 12)
    assert reply.awaits_first_audio and "r-0" not in voice.spoken
    assert reply.on_chunk(key, None, True, 1.0)
    assert reply.awaits_first_audio and voice.spoken["r-0"] == FIRST
    assert reply.on_chunk("r-0", None, True, 2.0)  # once is enough
    assert not reply.awaits_first_audio
