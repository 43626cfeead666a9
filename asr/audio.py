"""Audio in: files, telephone codecs and the one place where sample rates change.

Everything behind this module is float32 mono in [-1, 1] at `SAMPLE_RATE_HZ`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from asr.errors import (
    EmptyAudio,
    NotAudio,
    TruncatedAudio,
    UnsupportedChannels,
    UnsupportedRate,
)

Samples = NDArray[np.float32]

SAMPLE_RATE_HZ = 16_000
MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 192_000
MAX_CHANNELS = 8
INT16_SCALE = 32_768.0
FILE_CHUNK_FRAMES = 65_536
GSM_FRAME_MARK = 0xD  # upper half of every frame's first byte (GSM 06.10, 1.7)
UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # written by programs that stream a WAV without knowing its length


# ---- sample formats


def pcm16_to_float(data: bytes) -> Samples:
    """Little-endian signed 16 bit; an odd last byte is ignored (the caller keeps the remainder)."""
    usable = len(data) - len(data) % 2
    return np.frombuffer(data[:usable], dtype="<i2").astype(np.float32) / np.float32(INT16_SCALE)


def float_to_pcm16(samples: Samples) -> bytes:
    """Values outside [-1, 1] are clipped."""
    scaled = np.rint(np.asarray(samples, dtype=np.float32) * np.float32(INT16_SCALE))
    clipped = np.clip(scaled, -INT16_SCALE, INT16_SCALE - 1)
    return bytes(clipped.astype("<i2").tobytes())


def _mulaw_table() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = ((mantissa.astype(np.int32) << 3) + 0x84 << exponent) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / INT16_SCALE).astype(np.float32)


def _alaw_table() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = np.where(
        exponent == 0, (mantissa << 4) + 8, (mantissa << 4) + 0x108 << np.maximum(exponent - 1, 0)
    )
    return (np.where(code & 0x80, magnitude, -magnitude) / INT16_SCALE).astype(np.float32)


_MULAW = _mulaw_table()
_ALAW = _alaw_table()


def mulaw_to_float(data: bytes) -> Samples:
    """G.711 µ-law (ITU-T G.711, table 2a)."""
    return _MULAW[np.frombuffer(data, dtype=np.uint8)]


def alaw_to_float(data: bytes) -> Samples:
    """G.711 A-law (ITU-T G.711, table 1a)."""
    return _ALAW[np.frombuffer(data, dtype=np.uint8)]


def _nearest_codes(table: Samples, samples: Samples) -> bytes:
    order = np.argsort(table, kind="stable")
    middles = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(middles, samples)].astype(np.uint8).tobytes()


def float_to_mulaw(samples: Samples) -> bytes:
    """The µ-law code nearest to each sample."""
    return _nearest_codes(_MULAW, samples)


def float_to_alaw(samples: Samples) -> bytes:
    """The A-law code nearest to each sample."""
    return _nearest_codes(_ALAW, samples)


# ---- sample rates


class Resampler:
    """Streaming sample-rate conversion (soxr HQ, a linear-phase low-pass); state spans the chunks.

    The concatenated output does not depend on how the input was cut into chunks.

    Raises:
        UnsupportedRate: a rate outside 4 to 192 kHz.
    """

    def __init__(self, from_rate_hz: int, to_rate_hz: int = SAMPLE_RATE_HZ) -> None:
        for rate_hz in (from_rate_hz, to_rate_hz):
            if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
                raise UnsupportedRate(rate_hz)
        self._stream = (
            None
            if from_rate_hz == to_rate_hz
            else soxr.ResampleStream(from_rate_hz, to_rate_hz, 1, dtype="float32", quality="HQ")
        )

    def push(self, samples: Samples) -> Samples:
        """[N] in, [M] out; what the filter still holds comes with later chunks or `finish`."""
        samples = np.asarray(samples, dtype=np.float32)
        if self._stream is None:
            return samples
        return np.asarray(self._stream.resample_chunk(samples), dtype=np.float32)

    def finish(self) -> Samples:
        """The rest held in the filter; nothing may be pushed afterwards."""
        empty = np.zeros(0, dtype=np.float32)
        if self._stream is None:
            return empty
        return np.asarray(self._stream.resample_chunk(empty, last=True), dtype=np.float32)


def resample(samples: Samples, from_rate_hz: int, to_rate_hz: int) -> Samples:
    """All of `samples` [N] at once. Raises UnsupportedRate."""
    resampler = Resampler(from_rate_hz, to_rate_hz)
    return np.concatenate([resampler.push(samples), resampler.finish()])


# ---- files


@dataclass(frozen=True, slots=True)
class AudioFile:
    """A file opened for decoding. `chunks` yields mono float32 at `sample_rate_hz`, once."""

    sample_rate_hz: int
    num_channels: int
    chunks: Iterator[Samples]


def decode_file(path: Path) -> AudioFile:
    """Open any audio file: soundfile where it can, else PyAV; `.gsm` is raw GSM 06.10 at 8 kHz.

    Decoding is a stream: memory does not grow with the file. Channels are averaged.

    Raises:
        FileNotFoundError, NotAudio, EmptyAudio, UnsupportedRate, UnsupportedChannels: at once.
        TruncatedAudio: from `chunks`, after all that could be decoded was yielded.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    if path.stat().st_size == 0:
        raise EmptyAudio(path.name)
    if path.suffix.lower() != ".gsm":
        try:
            source = soundfile.SoundFile(path)
        except soundfile.LibsndfileError:
            pass
        else:
            return _open_with_soundfile(path, source)
    return _open_with_av(path)


def read_file(path: Path) -> Samples:
    """The whole file as [N] float32 mono at `SAMPLE_RATE_HZ`. Raises what `decode_file` raises."""
    return np.concatenate([*stream_file(path)])


def stream_file(path: Path) -> Iterator[Samples]:
    """`decode_file` resampled to `SAMPLE_RATE_HZ`, chunk by chunk; a truncated file still ends
    well.
    """
    audio = decode_file(path)
    resampler = Resampler(audio.sample_rate_hz)
    try:
        for chunk in audio.chunks:
            yield resampler.push(chunk)
    finally:
        rest = resampler.finish()
    yield rest


def write_wav(path: Path, samples: Samples, sample_rate_hz: int) -> None:
    """`samples` [N] or [N, channels] as 16-bit PCM."""
    soundfile.write(path, samples, sample_rate_hz, subtype="PCM_16")


def _check_format(name: str, sample_rate_hz: int, num_channels: int) -> None:
    if not MIN_RATE_HZ <= sample_rate_hz <= MAX_RATE_HZ:
        raise UnsupportedRate(sample_rate_hz)
    if num_channels < 1:
        raise EmptyAudio(name)
    if num_channels > MAX_CHANNELS:
        raise UnsupportedChannels(num_channels)


def _open_with_soundfile(path: Path, source: soundfile.SoundFile) -> AudioFile:
    try:
        _check_format(path.name, source.samplerate, source.channels)
        if source.frames == 0:
            raise EmptyAudio(path.name)
    except BaseException:
        source.close()
        raise
    return AudioFile(source.samplerate, source.channels, _soundfile_chunks(path, source))


def _soundfile_chunks(path: Path, source: soundfile.SoundFile) -> Iterator[Samples]:
    num_frames = 0
    with source:
        while True:
            try:
                block = source.read(FILE_CHUNK_FRAMES, dtype="float32", always_2d=True)
            except soundfile.LibsndfileError:
                break  # the decoder lost its way: judged as truncation below
            if not len(block):
                break
            num_frames += len(block)
            yield block.mean(axis=1, dtype=np.float32)
        if num_frames < source.frames:
            raise TruncatedAudio(path.name, source.frames, num_frames, "frames")
    missing = _missing_wav_bytes(path)
    if missing is not None:
        raise TruncatedAudio(path.name, *missing, "bytes")


def _missing_wav_bytes(path: Path) -> tuple[int, int] | None:
    """(announced, found) bytes of a RIFF data chunk cut short; libsndfile says nothing about it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return None
        while len(header := file.read(8)) == 8:
            name, announced = struct.unpack("<4sI", header)
            if name == b"data":
                found = size - file.tell()
                cut = announced not in UNKNOWN_SIZES and found < announced
                return (announced, found) if cut else None
            file.seek(announced + announced % 2, 1)
    return None


def _open_with_av(path: Path) -> AudioFile:
    is_gsm = path.suffix.lower() == ".gsm"
    if is_gsm and path.read_bytes()[0] >> 4 != GSM_FRAME_MARK:
        raise NotAudio(path.name)
    try:
        container = av.open(str(path), format="gsm" if is_gsm else None)
    except (av.error.FFmpegError, OSError) as error:
        raise NotAudio(path.name) from error
    try:
        if not container.streams.audio:
            raise NotAudio(path.name)
        context = container.streams.audio[0].codec_context
        rate_hz, num_channels = context.sample_rate, context.channels
        _check_format(path.name, rate_hz, num_channels)
        chunks = _av_chunks(path, container)
        first = next(chunks, None)
    except BaseException:
        container.close()
        raise
    if first is None:
        raise EmptyAudio(path.name)
    return AudioFile(rate_hz, num_channels, _chain(first, chunks))


def _chain(first: Samples, rest: Iterator[Samples]) -> Iterator[Samples]:
    yield first
    yield from rest


def _av_chunks(path: Path, container: av.container.InputContainer) -> Iterator[Samples]:
    stream = container.streams.audio[0]
    num_frames = 0
    with container:
        to_float = av.AudioResampler(format="fltp")  # sample format only; rate and layout stay
        try:
            for frame in container.decode(stream):
                for converted in to_float.resample(frame):
                    block = converted.to_ndarray()  # [channels, N]
                    num_frames += block.shape[1]
                    yield block.mean(axis=0, dtype=np.float32)
        except av.error.FFmpegError as error:
            if num_frames == 0:
                raise NotAudio(path.name) from error
            announced = round(float((stream.duration or 0) * (stream.time_base or 0)) * stream.rate)
            raise TruncatedAudio(path.name, announced, num_frames, "frames") from error
