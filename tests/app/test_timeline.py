from __future__ import annotations

import pytest

from app.timeline import Prices, Timeline
from llm_engine.events import TurnStats


def test_latencies_are_counted_from_the_end_of_speech_and_from_eou() -> None:
    timeline = Timeline(speech_end_s=1.0, eou_s=1.4)
    timeline.on_delta(3, (1.1, 1.2, 1.3), 1.41)
    timeline.on_delta(2, (1.45, 1.5), 1.51)
    timeline.first_audio_ready_s, timeline.first_audio_sent_s = 1.3, 1.42
    metrics = timeline.metrics(TurnStats(drafted_tokens=4, accepted_tokens=3), Prices())
    assert metrics["endpoint_delay_ms"] == 400
    assert metrics["ready_lag_ms"] == 0 and metrics["ready_at_eou"] is True
    assert metrics["response_delay_ms"] == 420
    assert metrics["ttft_ms"] == pytest.approx(10)
    assert metrics["lead_time_ms"] == pytest.approx(300)
    assert metrics["itl_ms"] == pytest.approx(100 / 4)
    assert (metrics["drafted_tokens"], metrics["accepted_tokens"]) == (4, 3)


def test_speech_made_ahead_is_ready_once_its_words_are_decided() -> None:
    timeline = Timeline(eou_s=1.0)
    timeline.on_delta(2, (0.8, 1.3), 1.31)
    timeline.on_first_audio(0.9, 1.31)
    metrics = timeline.metrics(TurnStats(), Prices())
    assert metrics["ready_lag_ms"] == pytest.approx(300) and metrics["ready_at_eou"] is False


def test_a_clock_that_is_set_anew_changes_no_latency() -> None:
    timelines = [Timeline(speech_end_s=1.0, eou_s=1.4) for _ in range(2)]
    for timeline in timelines:
        timeline.on_delta(2, (1.1, 1.2), 1.41)
        timeline.on_delta(1, (1.45,), 1.46)
        timeline.on_first_audio(1.3, 1.42)
    timelines[1].move_clock(-6.5)
    before, after = (timeline.metrics(TurnStats(), Prices()) for timeline in timelines)
    for key in ("endpoint_delay_ms", "ready_lag_ms", "response_delay_ms", "ttft_ms", "itl_ms"):
        assert after[key] == pytest.approx(before[key], abs=0.01), key


def test_audio_that_comes_late_is_not_ready_at_eou() -> None:
    timeline = Timeline(eou_s=1.0, first_audio_ready_s=1.021)
    metrics = timeline.metrics(TurnStats(), Prices())
    assert metrics["ready_lag_ms"] == pytest.approx(21) and metrics["ready_at_eou"] is False


def test_what_did_not_happen_is_none() -> None:
    metrics = Timeline(eou_s=1.0).metrics(TurnStats(), Prices())
    for key in ("ready_lag_ms", "ready_at_eou", "response_delay_ms", "ttft_ms", "itl_ms", "cost"):
        assert metrics[key] is None


def test_cost_counts_cached_prompt_tokens_apart_and_wasted_tokens_too() -> None:
    stats = TurnStats(prompt_tokens=100, cached_prompt_tokens=90, reply_tokens=20, wasted_tokens=5)
    cost = Prices(prompt=1.0, cached_prompt=0.1, reply=2.0).cost(stats)
    assert cost == pytest.approx((10 * 1.0 + 90 * 0.1 + 25 * 2.0) / 1e6)
