"""Audio as clients send and want it: bytes or base64 in a wire format ↔ float32 mono."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.protocols.errors import ProtocolError
from asr.audio import (
    SAMPLE_RATE_HZ,
    Resampler,
    alaw_to_float,
    float_to_alaw,
    float_to_mulaw,
    float_to_pcm16,
    mulaw_to_float,
    pcm16_to_float,
)

Encoding = Literal["pcm16", "mulaw", "alaw"]

_DECODERS = {"pcm16": pcm16_to_float, "mulaw": mulaw_to_float, "alaw": alaw_to_float}
_ENCODERS = {"pcm16": float_to_pcm16, "mulaw": float_to_mulaw, "alaw": float_to_alaw}


@dataclass(frozen=True, slots=True)
class WireFormat:
    encoding: Encoding
    rate_hz: int

    @property
    def bytes_per_sample(self) -> int:
        return 2 if self.encoding == "pcm16" else 1

    @property
    def is_telephone(self) -> bool:
        """The telephone's band; voices score lower in it."""
        return self.rate_hz < SAMPLE_RATE_HZ


def decode_base64(text: object, *, max_bytes: int, param: str) -> bytes:
    """Strict base64. Raises ProtocolError naming `param`."""
    if not isinstance(text, str):
        raise ProtocolError(
            "invalid_type", f"{param} must be a base64 string, not {type(text).__name__}", param
        )
    if len(text) > max_bytes * 4 // 3 + 4:
        raise ProtocolError(
            "audio_too_large", f"{param} holds {len(text) * 3 // 4} bytes; limit {max_bytes}", param
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise ProtocolError("invalid_base64", f"{param} is not base64: {cause}", param) from cause


class AudioDecoder:
    """A client's stream of one format → [N] float32 at 16 kHz; state spans the chunks."""

    def __init__(self, wire_format: WireFormat) -> None:
        self.format = wire_format
        self._decode = _DECODERS[wire_format.encoding]
        self._resampler = Resampler(wire_format.rate_hz, SAMPLE_RATE_HZ)

    def push(self, data: bytes) -> np.ndarray:
        """Raises ProtocolError for half a sample; nothing of `data` is used then."""
        if len(data) % self.format.bytes_per_sample:
            raise ProtocolError(
                "invalid_audio", f"{len(data)} bytes are not a whole number of 16-bit samples"
            )
        return self._resampler.push(self._decode(data))


class AudioEncoder:
    """A reply's audio → bytes of one format; state spans chunks, so use one encoder per reply."""

    def __init__(self, wire_format: WireFormat) -> None:
        self.format = wire_format
        self._encode = _ENCODERS[wire_format.encoding]
        self._resampler: Resampler | None = None

    def push(self, samples: np.ndarray, sample_rate_hz: int) -> bytes:
        if self._resampler is None:
            self._resampler = Resampler(sample_rate_hz, self.format.rate_hz)
        return self._encode(self._resampler.push(samples))

    def finish(self) -> bytes:
        """What the resampling filter still holds; the encoder is then as new."""
        resampler, self._resampler = self._resampler, None
        return self._encode(resampler.finish()) if resampler is not None else b""
