from __future__ import annotations

import base64

import numpy as np
import pytest

from app.protocols.errors import ProtocolError
from app.protocols.wire_audio import AudioDecoder, AudioEncoder, WireFormat, decode_base64

FORMATS = [WireFormat("pcm16", 24_000), WireFormat("mulaw", 8_000), WireFormat("alaw", 8_000)]
RATE_HZ = 24_000
TONE = (0.4 * np.sin(2 * np.pi * 300 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.float32)


@pytest.mark.parametrize("wire_format", FORMATS, ids=lambda f: f.encoding)
def test_a_tone_survives_the_wire_in_any_chunking(wire_format):
    encoder, decoder = AudioEncoder(wire_format), AudioDecoder(wire_format)
    data = b"".join(encoder.push(chunk, RATE_HZ) for chunk in np.array_split(TONE, 37))
    data += encoder.finish()
    step = 322
    heard = [decoder.push(data[start : start + step]) for start in range(0, len(data), step)]
    samples = np.concatenate(heard)[2000:14_000]
    expected = 0.4 * np.sin(2 * np.pi * 300 * np.arange(2000, 14_000) / 16_000)
    # companding keeps about 38 dB (ITU-T G.711); 0.4 / 10 ** (38 / 20) = 5e-3, at its peaks twice
    assert np.abs(samples - expected).max() < 0.012


def test_half_a_sample_is_refused_and_the_stream_goes_on():
    decoder = AudioDecoder(FORMATS[0])
    with pytest.raises(ProtocolError, match="3 bytes"):
        decoder.push(b"abc")
    assert decoder.push(bytes(9600)).shape[0] > 0


def test_an_encoder_is_as_new_after_its_end():
    encoder = AudioEncoder(FORMATS[1])
    first = encoder.push(TONE, RATE_HZ) + encoder.finish()
    assert encoder.push(TONE, RATE_HZ) + encoder.finish() == first
    assert encoder.finish() == b""


@pytest.mark.parametrize("text", ["abc", "a b=", "ü", "AAA=A", b"AAAA"])
def test_only_strict_base64_is_taken(text):
    with pytest.raises(ProtocolError) as caught:
        decode_base64(text, max_bytes=100, param="audio")
    assert caught.value.param == "audio"


def test_the_size_is_checked_before_decoding():
    data = bytes(101)
    assert decode_base64(base64.b64encode(data).decode(), max_bytes=101, param="audio") == data
    with pytest.raises(ProtocolError, match="limit 50"):
        decode_base64(base64.b64encode(data).decode(), max_bytes=50, param="audio")
