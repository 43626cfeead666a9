from __future__ import annotations

from llm_engine.breaker import CircuitBreaker


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
