"""The listener with its real models: recordings in, no faked part."""

from __future__ import annotations

import csv
import gc
import tracemalloc
from pathlib import Path

import jiwer
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
from asr.events import DecodeRequest, TurnCheckRequest, UtteranceEnded
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
    """All utterances of `samples` and two seconds of quiet."""
    stream = Stream(models, settings)
    stream.push(samples)
    stream.push((1e-4 * RNG.standard_normal(2 * SAMPLE_RATE_HZ)).astype(np.float32))
    return stream.ends


class Stream:
    """A listener whose requests are answered at once."""

    def __init__(self, models: tuple[Recogniser, SmartTurn], settings: ListenerSettings) -> None:
        self.ends: list[UtteranceEnded] = []
        self._listener = Listener(settings, SileroVad())
        self._models = models

    def push(self, samples: Samples) -> None:
        for start in range(0, len(samples), FRAME):
            waiting = self._listener.push(samples[start : start + FRAME])
            while waiting:
                event = waiting.pop(0)
                if isinstance(event, DecodeRequest | TurnCheckRequest):
                    waiting += self._listener.on_result(run_inline(*self._models, event))
                elif isinstance(event, UtteranceEnded):
                    self.ends.append(event)


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


# ---- long streams

SPEECH_CLIPS = Path(__file__).parent.parent / "clips"
GAP_S = 1.5
MAX_WER_DIFFERENCE = 0.02
MAX_GROWTH_BYTES = 500_000  # from the first quarter to the last; the test keeps the texts


def soak(models, minutes: float) -> None:
    """The bundled clips with pauses of near silence between them, over and over, with partials."""
    with (SPEECH_CLIPS / "manifest.tsv").open(encoding="utf-8") as file:
        references = {
            row["file"]: row["transcript"] for row in csv.DictReader(file, delimiter="\t")
        }
    clips = [read_file(SPEECH_CLIPS / name) for name in references]
    gap = (1e-4 * RNG.standard_normal(round(GAP_S * SAMPLE_RATE_HZ))).astype(np.float32)
    one_round = np.concatenate([part for clip in clips for part in (clip, gap)])
    num_rounds = max(3, round(minutes * 60 * SAMPLE_RATE_HZ / len(one_round)))
    said = normal_form(" ".join(references.values()))
    alone = [text for clip in clips for text in texts(listen(models, clip, ListenerSettings()))]

    stream = Stream(models, ListenerSettings())
    traced: list[int] = []
    delays_s: list[float] = []  # means of the rounds
    longest_s = 0.0
    heard: list[str] = []
    tracemalloc.start()
    for _ in range(num_rounds):
        stream.push(one_round)
        ends = [end.at_s - end.speech_end_s for end in stream.ends]
        delays_s.append(float(np.mean(ends)))
        longest_s = max(longest_s, *ends)
        heard += texts(stream.ends)
        stream.ends.clear()
        gc.collect()
        traced.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    wer_alone = jiwer.wer(said, " ".join(alone))
    wer_stream = jiwer.wer(" ".join([said] * num_rounds), " ".join(heard))
    quarter = max(1, num_rounds // 4)
    first_s, last_s = np.mean(delays_s[:quarter]), np.mean(delays_s[-quarter:])
    # A leak grows between most rounds a quarter apart. One step is none: a table of the process was
    # made anew under the tracer's eyes, or the buffer is twice what it last had to keep.
    apart = [
        later - earlier for earlier, later in zip(traced[1:], traced[1 + quarter :], strict=False)
    ]
    grown = int(np.median(apart) * num_rounds / quarter)
    print(
        f"{num_rounds * len(one_round) / SAMPLE_RATE_HZ / 60:.1f} minutes, {len(heard)} utterances,"
        f" WER {wer_stream:.3f} (alone {wer_alone:.3f}), delay {first_s:.3f} -> {last_s:.3f} s,"
        f" memory {grown:+d} bytes"
    )
    assert abs(wer_stream - wer_alone) <= MAX_WER_DIFFERENCE
    assert longest_s <= HARD_BOUND_S + 0.1
    assert last_s - first_s <= 0.1
    assert grown <= MAX_GROWTH_BYTES


@pytest.mark.models
def test_clips_joined_read_as_they_do_alone(models) -> None:
    soak(models, minutes=0)


@pytest.mark.models
@pytest.mark.slow
def test_an_hour_reads_as_its_clips_do_alone(models) -> None:
    soak(models, minutes=60)
