"""Commands of several sessions that share rows, seen through the engine."""

from __future__ import annotations

from random import Random
from typing import Any

import psutil
import pytest
import torch

from kernels.kv import KVArena
from llm_engine.batch import Batch
from llm_engine.events import SamplingParams, SpeculationTrigger, SuffixPolicy
from llm_engine.scheduler import Grant, Work
from tests.llm_engine.engine_rig import greedy_twin, make_engine, open_session, prompt, run
from tests.llm_engine.histories import play

WORDS = tuple(b"good morning to you all")
SHORT = SamplingParams(max_tokens=8)


def broken(*args: object, **settings: object) -> None:
    raise RuntimeError("it broke")


def test_commands_of_a_closed_session_are_dropped() -> None:
    engine = make_engine()
    session, events = open_session(engine)
    engine.commit(session, prompt(0, WORDS))
    engine.step()
    engine.close(session)
    run(engine)
    assert events.done[0].reason == "cancelled"
    assert engine.stats().num_sessions == 0


def test_drafting_gives_its_rows_to_committed_work() -> None:
    engine = make_engine(num_rows=256)
    drafting = [open_session(engine, sampling=SamplingParams(max_tokens=8)) for _ in range(2)]
    for session, _ in drafting:
        engine.update(session, prompt(0, WORDS))
        run(engine)
    session, events = open_session(engine, sampling=SamplingParams(max_tokens=40))
    engine.commit(session, prompt(0, WORDS * 2))
    run(engine)
    assert events.done[0].reason in ("stop", "length")
    # and those who lost their rows answer as if nothing had happened
    replies = []
    for session, lost in drafting:
        engine.commit(session, prompt(1, WORDS))
        run(engine)
        replies.append(lost.reply(0))
    assert replies[0] == replies[1] and replies[0]


@pytest.mark.parametrize("num_rows", range(80, 136, 8))
def test_a_draft_whose_rows_a_reply_takes_in_the_same_step_waits_for_its_next_snapshot(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    engine = make_engine(num_rows=num_rows)

    def everybody_rides_along(works: list[Work], num_sessions: int) -> list[Grant]:
        ordered = sorted(works, key=lambda work: work.work_class)
        return [Grant(work.session_id, work.num_tokens) for work in ordered]

    monkeypatch.setattr(engine._scheduler, "plan", everybody_rides_along)
    sampling = SamplingParams(max_tokens=24)
    drafting, _ = open_session(engine, sampling=sampling, draft_first_sentence=False)
    session, events = open_session(engine, sampling=sampling)
    engine.update(drafting, prompt(0, WORDS))
    engine.step()
    engine.commit(session, prompt(0, WORDS))  # its reply grows while the other drafts
    run(engine)
    done, reply = events.done[0], list(events.reply(0))
    assert done.reason != "error" or "KV rows" in str(done.error)  # too few even for one reply
    expected, _ = greedy_twin(prompt(0, WORDS).token_ids, 24)
    assert reply == (expected[: len(reply)] if done.reason == "error" else expected)
    assert num_rows < 112 or done.reason != "error"


def test_a_reply_that_grew_into_new_rows_survives_a_failed_pass_beside_who_got_its_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    forward, num_failed = engine._runner.model.forward, 0

    def failing(batch: Batch, arena: KVArena, may_go_on: Any = None) -> torch.Tensor:
        nonlocal num_failed
        logits = forward(batch, arena, may_go_on)
        if len(batch.extents) > 1:  # of several sessions, after all rows were written
            num_failed += 1
            raise RuntimeError("the pass broke")
        return logits

    sampling = SamplingParams(max_tokens=20)
    sessions = [open_session(engine, sampling=sampling, use_ngram_pool=False) for _ in range(3)]
    monkeypatch.setattr(engine._runner.model, "forward", failing)
    engine.commit(sessions[0][0], prompt(0, WORDS))
    for _ in range(8):
        engine.step()
    for session, _ in sessions[1:]:  # the second begins to reply when the first outgrows its rows
        engine.commit(session, prompt(0, WORDS[::-1]))
    first, second = (engine._sessions._sequences[session].kv for session, _ in sessions[:2])
    outgrown = first._reply
    engine.step()
    engine.step()
    assert outgrown is not None and second._reply is not None and first._reply is not outgrown
    assert second._reply.first_row == outgrown.first_row, "the case that this test is about"
    run(engine)
    assert num_failed > 10
    for (_, events), words in zip(sessions, (WORDS, WORDS[::-1], WORDS[::-1]), strict=True):
        assert list(events.reply(0)) == greedy_twin(prompt(0, words).token_ids, 20)[0]


@pytest.mark.parametrize("words", [(), WORDS[:4]], ids=["warmed", "drafted"])
def test_sessions_that_wait_give_their_rows_to_one_that_drafts(words: tuple[int, ...]) -> None:
    engine = make_engine(num_rows=256)
    waiting = [open_session(engine, sampling=SamplingParams(max_tokens=8)) for _ in range(8)]
    for number, (session, _) in enumerate(waiting):
        history = (tuple(range(30 + number, 55 + number)),)
        engine.update(session, prompt(0, words, history=history))
        run(engine)
    session, events = open_session(engine, sampling=SamplingParams(max_tokens=8))
    for revision in range(1, len(WORDS)):
        engine.update(session, prompt(revision, WORDS[:revision]))
        run(engine)
    assert not events.failures and events.drafts
    assert not any(others.failures for _, others in waiting)
    session, events = waiting[0]
    snapshot = prompt(1, WORDS[:6], history=(tuple(range(30, 55)),))
    engine.commit(session, snapshot)
    run(engine)
    assert list(events.reply(0)) == greedy_twin(snapshot.token_ids, 8)[0]


@pytest.mark.parametrize("method", ["set_prompt", "work", "feed", "advance"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_session_that_breaks_ends_alone_and_begins_afresh(
    monkeypatch: pytest.MonkeyPatch, method: str, is_committed: bool
) -> None:
    engine = make_engine()
    bad, bad_events = open_session(engine, sampling=SHORT)
    good, good_events = open_session(engine, sampling=SHORT)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._sessions._sequences[bad], method, broken)
        (engine.commit if is_committed else engine.update)(bad, prompt(0, WORDS))
        engine.commit(good, prompt(0, WORDS))
        engine.update(bad, prompt(1, WORDS[:5]))  # waits, and breaks as well
        run(engine)
    expected, _ = greedy_twin(prompt(0, WORDS).token_ids, 8)
    assert list(good_events.reply(0)) == expected
    if is_committed:
        assert (bad_events.done[0].reason, bad_events.done[0].error) == ("error", "it broke")
    assert {failure.message for failure in bad_events.failures} == {"it broke"}
    turn = engine.commit(bad, prompt(2, WORDS))
    run(engine)
    assert list(bad_events.reply(turn)) == expected


def test_row_moves_that_break_end_the_session_they_were_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(engine._sessions, "_move", broken)
        engine.update(session, prompt(0, WORDS))
        engine.commit(session, prompt(1, WORDS))
        run(engine)
    assert (events.done[0].reason, events.done[0].error) == ("error", "it broke")
    engine.commit(session, prompt(2, WORDS))
    run(engine)
    assert list(events.reply(1)) == greedy_twin(prompt(0, WORDS).token_ids, 8)[0]


def test_a_session_that_cannot_be_opened_answers_its_commits_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    with monkeypatch.context() as patch:
        patch.setattr("llm_engine.sessions.TurnReply", broken)
        bad, bad_events = open_session(engine)
        engine.step()
    good, good_events = open_session(engine, sampling=SHORT)
    for turn in range(2):
        engine.update(bad, prompt(2 * turn, WORDS))
        engine.commit(bad, prompt(2 * turn + 1, WORDS))
        engine.commit(good, prompt(turn, WORDS))
        run(engine)
        assert bad_events.done[turn].error == "it broke"
        assert good_events.done[turn].reason in ("stop", "length")
    assert [failure.code for failure in bad_events.failures] == ["engine_error"]
    engine.close(bad)
    run(engine)
    assert not engine._sessions._unopened and len(engine._cache._owners) == 1


def test_several_replies_run_in_one_pass() -> None:
    engine = make_engine()
    sessions = [open_session(engine, sampling=SamplingParams(max_tokens=8)) for _ in range(4)]
    for number, (session, _) in enumerate(sessions):
        engine.commit(session, prompt(0, WORDS[: 8 + number]))
    num_steps = run(engine)
    assert num_steps <= 12
    assert all(events.done for _, events in sessions)


def test_a_committed_reply_is_decided_before_any_draft_goes_on() -> None:
    engine = make_engine()
    for number in range(8):
        session, _ = open_session(engine)
        engine.update(session, prompt(0, (*WORDS, number)))
    engine.step()
    session, events = open_session(engine, sampling=SamplingParams(max_tokens=6))
    engine.commit(session, prompt(0, WORDS))
    while 0 not in events.done:
        report = engine.step()
        assert report is not None and report.has_committed


def num_operations(request: pytest.FixtureRequest) -> int:
    return 10_000 if request.config.getoption("--full") else 600


def test_random_operations_leave_every_row_accounted_for_and_no_growth(
    request: pytest.FixtureRequest,
) -> None:
    engine = make_engine(num_rows=2048)
    random = Random(1)
    total = num_operations(request)
    process = psutil.Process()
    sizes = []
    for number in range(total // 100):
        settings = {
            "sampling": SamplingParams(
                max_tokens=6, temperature=random.choice((0.0, 0.9)), top_p=0.9
            ),
            "draft_policy": random.choice(list(SuffixPolicy)),
            "suffix_policy": random.choice(list(SuffixPolicy)),
            "trigger": random.choice(list(SpeculationTrigger)),
            "cache_scope": random.choice(("", "other")),
        }
        play(engine, number, 100, **settings)
        stats = engine.stats()
        assert stats.num_sessions == 0
        assert stats.num_free_rows + stats.num_shared_rows == stats.num_rows
        sizes.append(process.memory_info().rss)
    # the second half of the run takes no more memory than the first did, but for the heap's grain
    middle = len(sizes) // 2
    assert max(sizes[middle:]) < max(sizes[:middle]) + 24e6
