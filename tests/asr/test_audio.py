from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio import (
    SAMPLE_RATE_HZ,
    Resampler,
    alaw_to_float,
    decode_file,
    float_to_alaw,
    float_to_mulaw,
    float_to_pcm16,
    mulaw_to_float,
    pcm16_to_float,
    read_file,
    write_wav,
)
from asr.errors import (
    EmptyAudio,
    NotAudio,
    TruncatedAudio,
    UnsupportedChannels,
    UnsupportedRate,
)

EVERY_CODE = bytes(range(256))


def tone(duration_s: float, rate_hz: int, hz: float = 440.0) -> np.ndarray:
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * time_s)).astype(np.float32)


def test_every_16_bit_value_survives_the_round_trip() -> None:
    data = np.arange(-32768, 32768, dtype="<i2").tobytes()
    assert float_to_pcm16(pcm16_to_float(data)) == data


def test_pcm16_clips_what_is_too_loud() -> None:
    assert float_to_pcm16(np.array([2.0, -2.0], np.float32)) == b"\xff\x7f\x00\x80"


def test_pcm16_ignores_half_a_sample() -> None:
    assert len(pcm16_to_float(b"\x00\x01\x02")) == 1


@pytest.mark.parametrize(
    ("decode", "encode"), [(mulaw_to_float, float_to_mulaw), (alaw_to_float, float_to_alaw)]
)
def test_every_g711_code_survives_the_round_trip(decode, encode) -> None:
    levels = decode(EVERY_CODE)
    assert np.array_equal(decode(encode(levels)), levels)


def test_g711_decodes_to_the_values_of_the_standard() -> None:
    # ITU-T G.711: the loudest codes are 8031 of 8192 (µ-law) and 4032 of 4096 (A-law)
    assert mulaw_to_float(b"\x80")[0] == pytest.approx(8031 / 8192, abs=1e-6)
    assert mulaw_to_float(b"\x00")[0] == pytest.approx(-8031 / 8192, abs=1e-6)
    assert mulaw_to_float(b"\xff")[0] == 0.0
    assert alaw_to_float(b"\xaa")[0] == pytest.approx(4032 / 4096, abs=1e-6)
    assert alaw_to_float(b"\x2a")[0] == pytest.approx(-4032 / 4096, abs=1e-6)


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 44_100, 48_000])
def test_resampling_keeps_a_tone_and_its_length(rate_hz: int) -> None:
    resampler = Resampler(rate_hz)
    out = np.concatenate([resampler.push(tone(1.0, rate_hz)), resampler.finish()])
    assert len(out) == pytest.approx(SAMPLE_RATE_HZ, abs=2)
    middle = slice(2000, 14000)
    assert np.abs(out[middle] - tone(1.0, SAMPLE_RATE_HZ)[middle]).max() < 1e-3


def test_downsampling_removes_what_would_alias() -> None:
    resampler = Resampler(48_000)
    out = np.concatenate([resampler.push(tone(1.0, 48_000, hz=11_000)), resampler.finish()])
    assert np.abs(out[2000:14000]).max() < 1e-3


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=20), st.sampled_from([8_000, 44_100]))
def test_resampling_does_not_depend_on_the_chunks(sizes: list[int], rate_hz: int) -> None:
    audio = np.random.default_rng(0).standard_normal(sum(sizes)).astype(np.float32)
    whole, parts = Resampler(rate_hz), Resampler(rate_hz)
    expected = np.concatenate([whole.push(audio), whole.finish()])
    chunks = np.split(audio, np.cumsum(sizes)[:-1])
    got = np.concatenate([*(parts.push(chunk) for chunk in chunks), parts.finish()])
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("rate_hz", [0, 1_000, 1_000_000])
def test_a_rate_nobody_records_at_is_refused(rate_hz: int) -> None:
    with pytest.raises(UnsupportedRate, match=str(rate_hz)):
        Resampler(rate_hz)


def test_a_wav_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    write_wav(path, tone(1.0, SAMPLE_RATE_HZ), SAMPLE_RATE_HZ)
    assert np.abs(read_file(path) - tone(1.0, SAMPLE_RATE_HZ)).max() < 1e-4


def test_channels_are_averaged(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    left, right = tone(0.5, 16_000, 300), tone(0.5, 16_000, 700)
    write_wav(path, np.stack([left, right], axis=1), 16_000)
    assert decode_file(path).num_channels == 2
    assert np.abs(read_file(path) - (left + right) / 2).max() < 1e-4


def test_sixteen_channels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.wav"
    write_wav(path, np.zeros((100, 16), np.float32), 16_000)
    with pytest.raises(UnsupportedChannels, match="16"):
        decode_file(path)


@pytest.mark.parametrize("name", ["page.wav", "page.mp3", "page.gsm"])
def test_what_is_not_audio_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"<html>not audio at all</html>" * 50)
    with pytest.raises(NotAudio, match=name):
        read_file(path)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    empty, header_only = tmp_path / "empty.wav", tmp_path / "header.wav"
    empty.touch()
    write_wav(header_only, np.zeros(0, np.float32), 16_000)
    for path in (empty, header_only):
        with pytest.raises(EmptyAudio, match=path.name):
            decode_file(path)


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        decode_file(tmp_path / "none.wav")


def test_a_truncated_wav_yields_what_there_is_and_then_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.wav"
    write_wav(path, tone(1.0, 16_000), 16_000)
    path.write_bytes(path.read_bytes()[:-16_000])
    chunks = decode_file(path).chunks
    with pytest.raises(TruncatedAudio, match=r"32000 bytes announced, 16000 found"):
        samples = [next(chunks)]
        for chunk in chunks:
            samples.append(chunk)
    assert len(np.concatenate(samples)) == 8_000


def test_a_wav_streamed_without_a_length_is_not_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "streamed.wav"
    write_wav(path, tone(0.5, 16_000), 16_000)
    data = bytearray(path.read_bytes())
    data[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(read_file(path)) == 8_000


def test_files_are_decoded_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    write_wav(path, np.zeros(16_000 * 30, np.float32), 16_000)
    assert max(len(chunk) for chunk in decode_file(path).chunks) <= 65_536


def test_telephone_clips_and_compressed_ones_decode(clips_dir: Path) -> None:
    for name, duration_s in (
        ("ast-en_tt-weasels.gsm", 2.96),
        ("tinkoff_privet_oleg.aac", 2.69),
        ("whisper_jfk.flac", 11.0),
        ("gasst_whattimeisit.riff", 1.57),
    ):
        samples = read_file(clips_dir / name)
        assert len(samples) / SAMPLE_RATE_HZ == pytest.approx(duration_s, abs=0.05), name
        assert 0.01 < np.abs(samples).max() <= 1.0, name
