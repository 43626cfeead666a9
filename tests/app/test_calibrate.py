from __future__ import annotations

import pytest

from app.calibrate import fit_costs
from app.virtual import Costs, Job


def test_the_table_is_the_medians_of_jobs_and_a_line_through_the_steps() -> None:
    jobs = [Job("partial", seconds) for seconds in (0.05, 0.06, 0.50)]
    jobs += [Job("final", 0.08), Job("turn_check", 0.04), Job("speech", 0.03, audio_s=2.0)]
    jobs += [
        Job("step", 0.010 + 0.002 * (num_tokens - 1), num_passes=1, num_tokens=num_tokens)
        for num_tokens in (1, 1, 2, 4, 8, 16, 1, 2, 3, 5)
    ]
    costs = fit_costs(jobs)
    assert (costs.partial_ms, costs.final_ms, costs.turn_check_ms) == (60, 80, 40)
    assert costs.decode_pass_ms == pytest.approx(10, abs=0.1)
    assert costs.prefill_token_ms == pytest.approx(2, abs=0.1)
    assert costs.tts_second_ms == 15


def test_jobs_that_never_happened_cost_nothing() -> None:
    assert fit_costs([]) == Costs()
