"""The interface every synthesizer implements, and the text-only one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np


class SynthesisFailed(Exception):
    """The synthesizer could not speak a piece; the message names why, never the text."""


class Synthesizer(ABC):
    """Text in, PCM out. One piece at a time; a caller stops early by closing the iterator."""

    sample_rate_hz: int

    @abstractmethod
    def synthesize(self, text: str) -> Iterator[np.ndarray]:
        """Yield chunks [N] float32 mono in [-1, 1] at `sample_rate_hz`. Raises SynthesisFailed."""

    def warm_up(self) -> None:
        """Make the first piece as fast as the tenth."""
        for _ in self.synthesize("Hello."):
            pass


class TextOnly(Synthesizer):
    """Speaks nothing: for clients that want text."""

    sample_rate_hz = 24_000

    def synthesize(self, text: str) -> Iterator[np.ndarray]:
        return iter(())
