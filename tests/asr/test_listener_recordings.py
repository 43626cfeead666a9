"""The listener with its real models: recordings in, no faked part."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from asr.audio import (
    SAMPLE_RATE_HZ,
    Resampler,
    Samples,
    float_to_mulaw,
    mulaw_to_float,
    read_file,
)
from asr.endpointing import HARD_BOUND_S
from asr.events import DecodeRequest, ListenerEvent, TurnCheckRequest, UtteranceEnded
from asr.listener import Listener
from asr.normal_form import normal_form
from asr.settings import ListenerSettings
from asr.smart_turn import SmartTurn
from asr.vad import SileroVad
from asr.whisper import Recogniser
from asr.worker import run_inline

FRAME = 320
NO_PARTIALS = ListenerSettings(partial_step_ms=60_000)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def models(whisper_path: Path, smart_turn_path: Path) -> tuple[Recogniser, SmartTurn]:
    return Recogniser(whisper_path), SmartTurn(smart_turn_path)


def listen(
    models: tuple[Recogniser, SmartTurn], samples: Samples, settings: ListenerSettings = NO_PARTIALS
) -> list[UtteranceEnded]:
    """All utterances of `samples` and two seconds of quiet; answers come at once."""
    listener = Listener(settings, SileroVad())
    quiet = (1e-4 * RNG.standard_normal(2 * SAMPLE_RATE_HZ)).astype(np.float32)
    whole = np.concatenate([samples, quiet])
    events: list[ListenerEvent] = []
    for start in range(0, len(whole), FRAME):
        waiting = listener.push(whole[start : start + FRAME])
        while waiting:
            event = waiting.pop(0)
            if isinstance(event, DecodeRequest | TurnCheckRequest):
                waiting += listener.on_result(run_inline(*models, event))
            else:
                events.append(event)
    return [event for event in events if isinstance(event, UtteranceEnded)]


def texts(ends: list[UtteranceEnded]) -> list[str]:
    return [normal_form(end.transcript.text) for end in ends if end.transcript is not None]


def tone(hz: float, seconds: float, level: float = 0.3) -> Samples:
    time_s = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    return (level * np.sin(2 * np.pi * hz * time_s)).astype(np.float32)


def dtmf() -> Samples:
    keys = [(697, 1209), (770, 1336), (852, 1477), (941, 1336), (697, 1477)]
    gap = np.zeros(1600, np.float32)
    return np.concatenate([p for a, b in keys for p in (tone(a, 0.2) + tone(b, 0.2), gap)])


def clicks() -> Samples:
    samples = np.zeros(4 * SAMPLE_RATE_HZ, np.float32)
    for start in RNG.integers(0, len(samples) - 200, 25):
        samples[start : start + 100] = 0.8 * RNG.standard_normal(100)
    return samples


NOISES = {
    "silence": np.zeros(3 * SAMPLE_RATE_HZ, np.float32),
    "hum": tone(50, 3) + tone(150, 3, 0.1),
    "hold tone": np.concatenate([tone(440, 1.0), np.zeros(8000, np.float32)] * 3),
    "ringing": (tone(440, 2.0) + tone(480, 2.0)) * 0.7,
    "dtmf": dtmf(),
    "clicks": clicks(),
    "white noise": (0.1 * RNG.standard_normal(4 * SAMPLE_RATE_HZ)).astype(np.float32),
    "faint noise": (0.003 * RNG.standard_normal(4 * SAMPLE_RATE_HZ)).astype(np.float32),
    "brown noise": (0.02 * np.cumsum(RNG.standard_normal(4 * SAMPLE_RATE_HZ)) / 20).astype(
        np.float32
    ),
}


@pytest.mark.models
@pytest.mark.parametrize("name", NOISES)
def test_noise_makes_no_turn(models, name: str) -> None:
    assert texts(listen(models, NOISES[name])) == []


@pytest.mark.models
@pytest.mark.parametrize("name", ["kgst_silence.wav", "asterisk_silence_10s.gsm"])
def test_recorded_silence_makes_no_turn(models, clips_dir: Path, name: str) -> None:
    assert texts(listen(models, read_file(clips_dir / name))) == []


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise_kitchen.wav", "pipecat_office-ambience-24000-mono.mp3"])
def test_minutes_of_noise_make_no_turn(models, clips_dir: Path, name: str) -> None:
    assert texts(listen(models, read_file(clips_dir / name))) == []


@pytest.mark.models
def test_a_question_is_heard_at_any_level_and_over_the_telephone(models, clips_dir: Path) -> None:
    question = read_file(clips_dir / "gasst_whattimeisit.riff")
    heard = ["what time is it"]
    assert texts(listen(models, question)) == heard
    assert texts(listen(models, question * np.float32(0.03))) == heard
    assert texts(listen(models, np.clip(question * 20, -1, 1).astype(np.float32))) == heard
    down, up = Resampler(16_000, 8_000), Resampler(8_000)
    narrow = np.concatenate([down.push(question), down.finish()])
    coded = mulaw_to_float(float_to_mulaw(narrow))
    telephone = ListenerSettings(partial_step_ms=60_000, is_telephone=True)
    again = np.concatenate([up.push(coded), up.finish()])
    assert texts(listen(models, again, telephone)) == heard


@pytest.mark.models
def test_a_word_cut_tight_at_both_ends_is_heard(models, clips_dir: Path) -> None:
    assert texts(listen(models, read_file(clips_dir / "gcp_today.wav"))) == ["today"]


@pytest.mark.models
def test_a_greeting_and_its_question_are_one_turn(models, clips_dir: Path) -> None:
    ends = listen(models, read_file(clips_dir / "gcp_hello_gemini_are_you_there.wav"))
    assert len(ends) == 1
    assert texts(ends)[0].startswith("hello")
    assert texts(ends)[0].endswith("are you there")


def joined(clips_dir: Path, names: list[str], minutes: float) -> Samples:
    """Clips with 1.5 s of near silence between them, over and over."""
    gap = (1e-4 * RNG.standard_normal(3 * SAMPLE_RATE_HZ // 2)).astype(np.float32)
    round_trip = np.concatenate([p for name in names for p in (read_file(clips_dir / name), gap)])
    num_rounds = round(minutes * 60 * SAMPLE_RATE_HZ / len(round_trip))
    return np.tile(round_trip, max(1, num_rounds))


SOAK_CLIPS = ["gasst_whattimeisit.riff", "riva_en-US_sample.wav"]


def soak(models, clips_dir: Path, minutes: float) -> None:
    samples = joined(clips_dir, SOAK_CLIPS, minutes)
    alone = [
        text for name in SOAK_CLIPS for text in texts(listen(models, read_file(clips_dir / name)))
    ]
    tracemalloc.start()
    listener_ends = listen(models, samples)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    heard = texts(listener_ends)
    assert len(heard) == len(alone) * round(len(heard) / len(alone))
    num_wrong = sum(text != alone[i % len(alone)] for i, text in enumerate(heard))
    assert num_wrong <= 0.2 * len(heard)  # a window begun elsewhere reads a little differently
    delays_s = [end.at_s - end.speech_end_s for end in listener_ends]
    assert max(delays_s) <= HARD_BOUND_S + 0.1
    rounds = np.reshape(delays_s, (-1, len(alone))).mean(axis=1)
    assert abs(rounds[-1] - rounds[0]) <= 0.2
    assert peak_bytes < 64e6 + 2 * samples.nbytes  # the stream itself is held by the test


@pytest.mark.models
def test_clips_joined_to_a_minute_read_as_they_do_alone(models, clips_dir: Path) -> None:
    soak(models, clips_dir, minutes=0.3)


@pytest.mark.models
@pytest.mark.slow
def test_an_hour_reads_as_its_clips_do_alone(models, clips_dir: Path) -> None:
    soak(models, clips_dir, minutes=60)
