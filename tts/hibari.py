"""The default voice: hibari-tts, whose model is in its wheel. The only file that imports it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hibari import SAMPLE_RATE, Hibari
from hibari.voices import DEFAULT, VOICES

from tts.sentences import speakable
from tts.synthesizer import SynthesisFailed, Synthesizer

# The model puts about 270 ms of near-silence before every piece and 400 ms after it. Heard latency
# starts at the first audible sample, so both are cut down to what joins pieces naturally.
AUDIBLE_LEVEL = 1e-3
LEAD_IN_MS = 20
SENTENCE_PAUSE_MS = 200
CLAUSE_PAUSE_MS = 90
CUT_PAUSE_MS = 20  # the sentence goes on in the next piece
WARM_UP_TEXT = (
    "Hello, this is a blorptz warming up on the 3rd."  # numbers and an unknown word load lazily
)


class VoiceNotFound(Exception):
    """No such voice in the package; `available` names those there are."""

    def __init__(self, voice: str) -> None:
        self.voice = voice
        self.available = (DEFAULT,)
        super().__init__(f"voice {voice!r} is not part of the package; available: {DEFAULT}")


class HibariSynthesizer(Synthesizer):
    """English speech at 24 kHz on one CPU core (`num_threads`), about 20-50 ms for a short
    sentence.

    The same text always gives the same samples. `speed` is 0.5 (slow) to 2.0 (fast). Raises
    VoiceNotFound for any voice outside the wheel: those would be downloaded at first use.
    """

    sample_rate_hz = SAMPLE_RATE

    def __init__(self, voice: str = DEFAULT, *, num_threads: int = 1, speed: float = 1.0) -> None:
        if voice not in VOICES or voice != DEFAULT:
            raise VoiceNotFound(voice)
        if not 0.5 <= speed <= 2.0:
            raise ValueError(f"speed must be within 0.5 and 2.0, not {speed}")
        self.speed = speed
        self._hibari = Hibari(voice=voice, threads=num_threads)

    def synthesize(self, text: str) -> Iterator[np.ndarray]:
        """One chunk per sentence found in `text`, near-silence at its ends cut. Nothing for text
        without words.
        """
        spoken = speakable(text)
        if not spoken:
            return
        chunks = self._hibari.stream(spoken, speed=self.speed, seed=0)
        while True:
            try:
                chunk = next(chunks, None)
            except (
                Exception
            ) as cause:  # the package raises whatever its numpy and onnxruntime calls raise
                raise SynthesisFailed(f"hibari: {type(cause).__name__}") from cause
            if chunk is None:
                return
            pause_ms = _pause_ms(spoken[-1])
            chunk = trim_silence(chunk, pause_ms)
            if len(chunk):
                yield chunk

    def warm_up(self) -> None:
        for _ in self.synthesize(WARM_UP_TEXT):
            pass


def _pause_ms(last: str) -> int:
    """How long to rest after a piece that ends in the character `last`."""
    if last.isalnum():
        return CUT_PAUSE_MS
    return CLAUSE_PAUSE_MS if last in ",;:-—–" else SENTENCE_PAUSE_MS


def trim_silence(samples: np.ndarray, pause_ms: int) -> np.ndarray:
    """Keep LEAD_IN_MS before the first and at most `pause_ms` after the last audible sample; empty
    if none.
    """
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE_LEVEL)
    if not len(audible):
        return samples[:0]
    first = max(0, int(audible[0]) - LEAD_IN_MS * SAMPLE_RATE // 1000)
    last = int(audible[-1]) + 1 + pause_ms * SAMPLE_RATE // 1000
    trimmed: np.ndarray = np.clip(samples[first:last], -1.0, 1.0).astype(np.float32)
    return trimmed
