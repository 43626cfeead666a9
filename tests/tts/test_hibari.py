"""The default voice, with its real model (part of the wheel)."""

from __future__ import annotations

import numpy as np
import pytest

from tts.hibari import (
    AUDIBLE_LEVEL,
    CLAUSE_PAUSE_MS,
    LEAD_IN_MS,
    SENTENCE_PAUSE_MS,
    HibariSynthesizer,
    VoiceNotFound,
    trim_silence,
)
from tts.synthesizer import SynthesisFailed


@pytest.fixture(scope="module")
def voice() -> HibariSynthesizer:
    synthesizer = HibariSynthesizer()
    synthesizer.warm_up()
    return synthesizer


def speak(voice: HibariSynthesizer, text: str) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *voice.synthesize(text)])


def test_speech_is_float32_audible_and_within_range(voice):
    samples = speak(voice, "The capital of France is Paris.")
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert 1.0 < len(samples) / voice.sample_rate_hz < 4.0
    assert 0.05 < np.abs(samples).max() <= 1.0


def test_the_same_text_gives_the_same_samples(voice):
    text = "I am sure, it is four."
    assert np.array_equal(speak(voice, text), speak(voice, text))


@pytest.mark.parametrize(
    ("text", "pause_ms"), [("Hello there.", SENTENCE_PAUSE_MS), ("Well then,", CLAUSE_PAUSE_MS)]
)
def test_speech_begins_at_once_and_ends_with_a_short_pause(voice, text, pause_ms):
    samples = speak(voice, text)
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE_LEVEL)
    ms = voice.sample_rate_hz / 1000
    assert audible[0] / ms <= LEAD_IN_MS + 1
    assert (len(samples) - audible[-1]) / ms <= pause_ms + 1


def test_several_sentences_come_as_several_chunks(voice):
    assert len(list(voice.synthesize("It is late. Go home."))) == 2


@pytest.mark.parametrize("text", ["", "   ", "...", "---", "😀", "你好"])
def test_text_without_speakable_words_gives_no_audio(voice, text):
    assert list(voice.synthesize(text)) == []


def test_odd_text_is_spoken(voice):
    for text in ("a" * 1000, "Hello\x00 there", "**Bold** `code` 3.14 $5", "blorptz zyxgh"):
        assert len(speak(voice, text)) > 0


def test_a_failure_of_the_package_is_a_typed_error_without_the_text(voice, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("secret words")

    monkeypatch.setattr(voice._hibari, "from_ids", fail)
    with pytest.raises(SynthesisFailed, match="RuntimeError") as caught:
        speak(voice, "secret words")
    assert "secret" not in str(caught.value)


def test_a_voice_that_would_have_to_be_downloaded_is_refused():
    with pytest.raises(VoiceNotFound, match="'emma'.*heart"):
        HibariSynthesizer("emma")


def test_a_speed_out_of_range_is_refused():
    with pytest.raises(ValueError, match="9"):
        HibariSynthesizer(speed=9)


def test_faster_speech_is_shorter(voice):
    fast = HibariSynthesizer(speed=2.0)
    assert len(speak(fast, "This is a test.")) < 0.8 * len(speak(voice, "This is a test."))


def test_silence_alone_is_trimmed_to_nothing():
    assert len(trim_silence(np.full(2400, 1e-4, np.float32), 200)) == 0
