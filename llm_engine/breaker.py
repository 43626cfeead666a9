"""Stops using what fails again and again, and tries it anew after a rest."""

from __future__ import annotations

from llm_engine.errors import EngineUnavailable


class CircuitBreaker:
    """Opens after `max_failures` in a row, closes `rest_s` later. Time is passed in."""

    def __init__(self, max_failures: int, rest_s: float) -> None:
        self._max_failures = max_failures
        self._rest_s = rest_s
        self._num_failures = 0
        self._open_until_s: float | None = None

    def is_open(self, now_s: float) -> bool:
        if self._open_until_s is not None and now_s >= self._open_until_s:
            self._open_until_s = None
        return self._open_until_s is not None

    def require_closed(self, now_s: float) -> None:
        """Raises EngineUnavailable, which says how long the rest still lasts."""
        if self.is_open(now_s) and self._open_until_s is not None:
            left_s = self._open_until_s - now_s
            raise EngineUnavailable(
                f"the engine failed {self._max_failures} times in a row and rests: "
                f"try again in {left_s:.1f} s"
            )

    def on_success(self) -> None:
        self._num_failures = 0

    def on_failure(self, now_s: float) -> None:
        self._num_failures += 1
        if self._num_failures >= self._max_failures:
            self._num_failures = 0
            self._open_until_s = now_s + self._rest_s
