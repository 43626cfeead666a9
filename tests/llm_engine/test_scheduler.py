"""Who runs next: committed before speculative, within budgets, one filler per shared prefix."""

from __future__ import annotations

import pytest

from llm_engine.engine_config import EngineConfig
from llm_engine.scheduler import CostModel, Grant, Scheduler, Work, WorkClass


def scheduler(fixed_s: float = 0.010, per_token_s: float = 0.001, **sizes: int) -> Scheduler:
    made = Scheduler(EngineConfig(**sizes))  # type: ignore[arg-type]
    made.cost = CostModel(fixed_s, per_token_s)
    return made


def work(name: str, work_class: WorkClass, num_tokens: int, order: float = 0.0) -> Work:
    return Work(name, work_class, num_tokens, order)


def test_committed_work_goes_first_and_sheds_speculation_where_tokens_cost_time() -> None:
    works = [
        work("draft", WorkClass.DRAFT, 5),
        work("prefill", WorkClass.COMMITTED_PREFILL, 6),
        work("decode", WorkClass.COMMITTED_DECODE, 2),
    ]
    assert scheduler().plan(works, 8) == [Grant("decode", 2), Grant("prefill", 6)]


def test_speculation_rides_along_where_a_pass_costs_the_same() -> None:
    works = [work("draft", WorkClass.DRAFT, 5), work("decode", WorkClass.COMMITTED_DECODE, 1)]
    grants = scheduler(fixed_s=0.010, per_token_s=0.00001).plan(works, 8)
    assert [grant.session_id for grant in grants] == ["decode", "draft"]


def test_a_speculative_step_is_as_long_as_a_commit_may_wait() -> None:
    plan = scheduler().plan([work("a", WorkClass.DRAFT, 500), work("b", WorkClass.DRAFT, 5)], 8)
    assert plan == [Grant("a", pytest.approx(10, abs=1))]


def test_a_session_alone_computes_its_likely_final_prompt_in_one_pass() -> None:
    pause, draft = work("a", WorkClass.PAUSE_DRAFT, 500), work("a", WorkClass.DRAFT, 500)
    assert scheduler(max_step_tokens=256).plan([pause], 1) == [Grant("a", 256)]
    assert scheduler().plan([draft], 1)[0].num_tokens > scheduler().plan([draft], 2)[0].num_tokens
    assert scheduler().plan([pause], 2) == scheduler().plan([draft], 2)


def test_a_step_makes_progress_even_where_a_pass_takes_too_long() -> None:
    plan = scheduler(fixed_s=0.5).plan([work("a", WorkClass.DRAFT, 500)], 8)
    assert plan == [Grant("a", EngineConfig().min_speculative_step_tokens)]


def test_drafts_at_a_pause_go_before_others_and_the_longest_waiting_first() -> None:
    works = [
        work("late", WorkClass.DRAFT, 3, order=9),
        work("early", WorkClass.DRAFT, 3, order=2),
        work("pause", WorkClass.PAUSE_DRAFT, 3, order=50),
    ]
    names = [grant.session_id for grant in scheduler().plan(works, 8)]
    assert names == ["pause", "early", "late"]


def test_scoring_for_a_baseline_never_shares_a_step_with_accounted_work() -> None:
    score = work("score", WorkClass.SCORE, 3)
    assert scheduler().plan([score], 8) == [Grant("score", 3)]
    assert scheduler().plan([score, work("a", WorkClass.DRAFT, 3)], 8) == [Grant("a", 3)]
    decode = work("decode", WorkClass.COMMITTED_DECODE, 1)
    assert scheduler(per_token_s=1e-6).plan([score, decode], 8) == [Grant("decode", 1)]


def test_a_shared_prefix_is_filled_by_one_session_at_a_time() -> None:
    works = [
        Work("first", WorkClass.COMMITTED_PREFILL, 10, 0.0, prefix_key=1),
        Work("second", WorkClass.COMMITTED_PREFILL, 10, 1.0, prefix_key=1),
        Work("other", WorkClass.COMMITTED_PREFILL, 10, 2.0, prefix_key=2),
    ]
    names = [grant.session_id for grant in scheduler().plan(works, 8)]
    assert names == ["first", "other"]


def test_committed_prompts_are_chunked() -> None:
    plan = scheduler(max_step_tokens=64).plan([work("a", WorkClass.COMMITTED_PREFILL, 500)], 8)
    assert plan == [Grant("a", 64)]


def test_the_cost_model_learns_a_line_and_ignores_a_clock_that_stands_still() -> None:
    cost = CostModel(0.5, 0.5)
    for _ in range(400):
        for num_tokens in (1, 4, 16, 64):
            cost.add(num_tokens, 0.012 + 0.0015 * num_tokens)
    assert cost.fixed_s == pytest.approx(0.012, rel=0.02)
    assert cost.per_token_s == pytest.approx(0.0015, rel=0.02)
    assert cost.tokens_within(0.020) == 5
    assert cost.token_cost == pytest.approx(0.0015 / 0.0135, rel=0.02)
    before = cost.seconds(10)
    cost.add(10, 0.0)
    assert cost.seconds(10) == before


def test_equal_steps_do_not_divide_by_zero() -> None:
    cost = CostModel()
    for _ in range(2000):
        cost.add(8, 0.02)
    assert cost.seconds(8) == pytest.approx(0.02, rel=0.05)
    assert cost.tokens_within(0.001) == 0
