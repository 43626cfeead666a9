from __future__ import annotations

from asr.events import DecodeResult, Word
from asr.utterance import PauseDecode, Utterance, fill


def result(revision: int, text: str, **fields: object) -> DecodeResult:
    return DecodeResult(0, revision, text, **fields)  # type: ignore[arg-type]


def test_a_frozen_segment_comes_before_the_open_one() -> None:
    utterance = Utterance(0, 0, 0, text="I would like")
    utterance.freeze(4, 16_000, result(4, "I would like,"))
    utterance.text = "two tickets."
    transcript = utterance.make_transcript(0, 2.0, at_pause=True)
    assert transcript.text == "I would like, two tickets."
    assert transcript.stable.startswith("I would like,")
    assert transcript.prompt_text == "I would like two tickets"


def test_it_is_complete_when_every_decode_has_come() -> None:
    utterance = Utterance(0, 0, 0)
    assert not utterance.is_complete
    utterance.freeze(4, 16_000, None)
    utterance.pause = PauseDecode(5, 32_000, result(5, "b"))
    assert not utterance.is_complete
    fill(utterance.frozen[0], result(4, "a"))
    assert utterance.is_complete


def test_a_segment_frozen_in_its_pause_is_complete_with_its_own_decode() -> None:
    utterance = Utterance(0, 0, 0, text="I would")
    utterance.pause = PauseDecode(4, 16_000)
    utterance.freeze_in_pause()
    assert utterance.segment_start == 16_000 and not utterance.is_complete
    fill(utterance.frozen[0], result(4, "I would."))
    assert utterance.is_complete
    assert utterance.make_transcript(0, 2.0, at_pause=True).text == "I would."


def test_after_a_failed_decode_the_newest_guess_stays() -> None:
    utterance = Utterance(0, 0, 0, text="newest guess")
    utterance.freeze(4, 16_000, result(4, "", error="failed"))
    assert utterance.make_transcript(0, 1.0, at_pause=False).text == "newest guess"


def test_alternatives_that_read_the_same_are_left_out() -> None:
    utterance = Utterance(0, 0, 0, text="Light rose.")
    transcript = utterance.make_transcript(
        0, 1.0, at_pause=True, alternatives=("light rose", "light roast", "Light rose?", "")
    )
    assert transcript.alternatives == ("Light roast", "Light rose?")


def test_words_of_all_segments_are_told() -> None:
    utterance = Utterance(0, 0, 0)
    utterance.freeze(1, 100, result(1, "one", words=(Word("one"),)))
    utterance.text, utterance.words = "two", (Word("two"),)
    words = utterance.make_transcript(0, 1.0, at_pause=True).words
    assert [word.text for word in words] == ["one", "two"]
