from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.bench.memory import RememberingDecoder, RememberingSynthesizer
from asr.events import DecodeRequest, DecodeResult
from tts.synthesizer import Synthesizer


class Counting:
    """A recogniser whose text is how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    max_batch = 1

    def decode(self, requests: list[DecodeRequest]) -> list[DecodeResult]:
        self.num_asked += len(requests)
        return [DecodeResult(r.utterance, r.revision, str(self.num_asked)) for r in requests]


def request(revision: int, level: float, kind: str = "partial") -> DecodeRequest:
    return DecodeRequest(0, revision, np.full(160, level, np.float32), 0.0, kind)  # type: ignore[arg-type]


def test_the_same_speech_is_decoded_once_and_answers_to_its_own_revision() -> None:
    counting = Counting()
    decoder = RememberingDecoder(counting)
    first, again = decoder.decode([request(1, 0.5)])[0], decoder.decode([request(7, 0.5)])[0]
    assert (first.text, first.revision) == ("1", 1)
    assert (again.text, again.revision) == ("1", 7)
    other, final = decoder.decode([request(8, 0.25), request(9, 0.5, "pause")])
    assert (other.text, final.text) == ("2", "3")


def test_the_same_text_is_spoken_once() -> None:
    class Voice(Synthesizer):
        sample_rate_hz = 8000
        num_spoken = 0

        def synthesize(self, text: str) -> Iterator[np.ndarray]:
            self.num_spoken += 1
            yield np.full(3, len(text), np.float32)

    voice = Voice()
    remembering = RememberingSynthesizer(voice)
    one, two = (list(remembering.synthesize("hi")) for _ in range(2))
    assert one[0].tolist() == two[0].tolist() == [2, 2, 2]
    assert voice.num_spoken == 1 and remembering.sample_rate_hz == 8000
