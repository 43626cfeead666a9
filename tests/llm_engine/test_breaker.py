from __future__ import annotations

import pytest

from llm_engine.breaker import CircuitBreaker
from llm_engine.errors import EngineUnavailable


def test_it_opens_after_failures_in_a_row_and_closes_after_its_rest() -> None:
    breaker = CircuitBreaker(max_failures=3, rest_s=5.0)
    breaker.on_failure(0.0)
    breaker.on_failure(1.0)
    breaker.on_success()
    breaker.on_failure(2.0)
    breaker.on_failure(3.0)
    assert not breaker.is_open(3.0)
    breaker.on_failure(4.0)
    assert breaker.is_open(4.0) and breaker.is_open(8.9)
    assert not breaker.is_open(9.0)
    breaker.on_failure(10.0)
    assert not breaker.is_open(10.0)


def test_while_it_is_open_it_says_how_long_that_will_last() -> None:
    breaker = CircuitBreaker(max_failures=1, rest_s=5.0)
    breaker.require_closed(0.0)
    breaker.on_failure(0.0)
    with pytest.raises(EngineUnavailable, match="1 times in a row .* try again in 3.5 s"):
        breaker.require_closed(1.5)
    breaker.require_closed(5.0)
