"""When partials are asked for (pure): a steady step that stretches with length and load."""

from __future__ import annotations

from asr.audio import SAMPLE_RATE_HZ
from asr.settings import ListenerSettings

LONG_SEGMENT_SAMPLES = 4 * SAMPLE_RATE_HZ  # longer ones cost more per partial: the step follows


class PartialPacing:
    """One partial is out at a time.

    One that is late by `max_partial_step_ms` is overtaken by the next.
    """

    def __init__(self) -> None:
        self._sent_at = 0
        self._due_at = 0
        self._out: int | None = None  # revision

    def restart(self, position: int, settings: ListenerSettings) -> None:
        """Speech started or resumed at sample `position`."""
        self._due_at = position + _samples(settings.partial_step_ms)

    def is_due(self, position: int, settings: ListenerSettings) -> bool:
        if position < self._due_at:
            return False
        is_late = position - self._sent_at >= _samples(settings.max_partial_step_ms)
        return self._out is None or is_late

    def sent(
        self, revision: int, position: int, segment_samples: int, settings: ListenerSettings
    ) -> None:
        """A partial over `segment_samples` of audio was asked for at sample `position`."""
        step = _samples(settings.partial_step_ms)
        longest = max(step, _samples(settings.max_partial_step_ms))
        stretched = step * max(segment_samples, LONG_SEGMENT_SAMPLES) // LONG_SEGMENT_SAMPLES
        self._out = revision
        self._sent_at = position
        self._due_at = position + min(stretched, longest)

    def answered(self, revision: int) -> None:
        if self._out is not None and revision >= self._out:
            self._out = None


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE_HZ // 1000
