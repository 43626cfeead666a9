"""When partials are asked for (pure): a steady step that stretches while decoding is behind."""

from __future__ import annotations

from asr.audio import SAMPLE_RATE_HZ
from asr.settings import ListenerSettings


class PartialPacing:
    """One partial is out at a time; one that is late by `max_partial_step_ms` is overtaken by the
    next.
    """

    def __init__(self) -> None:
        self._sent_at = 0
        self._due_at = 0
        self._out: int | None = None  # revision
        self._step_samples = 0

    def restart(self, position: int, settings: ListenerSettings) -> None:
        """Speech started or resumed at sample `position`."""
        self._due_at = position + _samples(settings.partial_step_ms)

    def is_due(self, position: int, settings: ListenerSettings) -> bool:
        self._step_samples = _samples(settings.partial_step_ms)
        if position < self._due_at:
            return False
        is_late = position - self._sent_at >= _samples(settings.max_partial_step_ms)
        return self._out is None or is_late

    def sent(self, revision: int, position: int) -> None:
        self._out = revision
        self._sent_at = position
        self._due_at = position + self._step_samples

    def answered(self, revision: int) -> None:
        if self._out is not None and revision >= self._out:
            self._out = None


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE_HZ // 1000
