"""The engine from outside: commands in, events out, step by step."""

from __future__ import annotations

import threading
import time
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.errors import (
    BadSessionConfig,
    EmptyPrompt,
    EngineUnavailable,
    PromptTooLong,
    StaleRevision,
    TooManySessions,
    UnknownSession,
)
from llm_engine.events import SamplingParams, SessionConfig, SpeculationTrigger, SuffixPolicy
from llm_engine.prompt import Segment, Snapshot
from llm_engine.random_model import random_model
from llm_engine.sampling import BadSamplingParams
from tests.llm_engine.engine_rig import (
    ByteTokenizer,
    Clock,
    Events,
    assert_rows_equal_fresh_prefill,
    greedy_twin,
    make_engine,
    open_session,
    prompt,
    run,
    tiny_model,
)

TOKENIZER: Any = ByteTokenizer()
WORDS = tuple(b"how late is it in the old town today")


def short(max_tokens: int = 12) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


def test_a_committed_prompt_is_answered_as_transformers_would() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short())
    assert engine.commit(session, prompt(0, WORDS)) == 0
    run(engine)
    expected, _ = greedy_twin(prompt(0, WORDS).token_ids, 12)
    assert list(events.reply(0)) == expected
    assert events.done[0].reason == ("length" if len(expected) == 12 else "stop")


def test_a_commit_equal_to_the_drafted_snapshot_is_answered_without_a_pass() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(), draft_first_sentence=False)
    snapshot = prompt(0, WORDS)
    engine.update(session, snapshot)
    run(engine)
    assert not events.deltas and events.drafts
    engine.commit(session, snapshot)
    report = engine.step()
    assert report is not None and report.num_passes == 0
    assert events.reply(0) == tuple(greedy_twin(snapshot.token_ids, 12)[0])
    stats = events.done[0].stats
    assert stats.passes_after_commit == 0 and stats.accepted_tokens == stats.reply_tokens > 0
    assert stats.first_token_at_s is not None and stats.committed_at_s is not None
    assert stats.first_token_at_s < stats.committed_at_s


@pytest.mark.parametrize("is_drafted", [True, False])
@pytest.mark.parametrize("max_reply_tokens", [1, 5, 12, 99])
def test_a_commit_may_want_a_shorter_reply(is_drafted: bool, max_reply_tokens: int) -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(), draft_first_sentence=False)
    if is_drafted:
        engine.update(session, prompt(0, WORDS))
        run(engine)
    asked = replace(prompt(1, WORDS), max_reply_tokens=max_reply_tokens)
    engine.commit(session, asked)
    run(engine)
    expected, _ = greedy_twin(asked.token_ids, min(12, max_reply_tokens))
    assert list(events.reply(0)) == expected
    assert events.done[0].reason == "length"
    assert_rows_equal_fresh_prefill(engine, session, 1e-4)
    engine.commit(session, prompt(2, (*WORDS, 97)))
    run(engine)
    assert list(events.reply(1)) == greedy_twin(prompt(2, (*WORDS, 97)).token_ids, 12)[0]


def test_the_same_prompt_in_the_next_turn_is_answered_in_full_again() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short())
    engine.commit(session, prompt(0, WORDS))
    run(engine)
    engine.truncate(session, 0, 0)
    engine.update(session, prompt(1, WORDS))
    run(engine)
    engine.commit(session, prompt(2, WORDS))
    run(engine)
    assert (
        events.reply(0) == events.reply(1) == tuple(greedy_twin(prompt(0, WORDS).token_ids, 12)[0])
    )


def test_an_equal_prompt_with_a_later_revision_is_answered_without_a_pass_too() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(), draft_first_sentence=False)
    engine.update(session, prompt(0, WORDS))
    run(engine)
    engine.commit(session, prompt(7, WORDS, at_pause=True))
    assert run(engine) == 1
    assert events.done[0].stats.passes_after_commit == 0


def test_only_what_follows_the_first_changed_token_is_computed_again() -> None:
    engine = make_engine(min_speculative_step_tokens=500)
    session, _ = open_session(engine, sampling=short(), use_ngram_pool=False)
    engine.update(session, prompt(0, WORDS))
    run(engine)
    engine.commit(session, prompt(1, WORDS[:-5] + tuple(b"later")))
    report = engine.step()
    assert report is not None
    # "today" and "later" differ from their first letter on; the suffix follows
    assert report.num_prefill_tokens == 5 + 2


@pytest.mark.parametrize(
    ("policy", "kept", "reused"),
    [(SuffixPolicy.RECOMPUTE, 0, 0), (SuffixPolicy.ROTATE, 0, 30)],
)
def test_each_snapshot_accounts_for_what_it_left_to_do(
    policy: SuffixPolicy, kept: int, reused: int
) -> None:
    engine = make_engine(min_speculative_step_tokens=500)
    session, events = open_session(
        engine, sampling=short(), draft_policy=policy, suffix_policy=policy
    )
    suffix = tuple(range(100, 130))
    engine.update(session, prompt(0, WORDS, suffix=suffix))
    run(engine)
    engine.commit(session, prompt(1, (*WORDS[:-5], *b"later"), suffix=suffix))
    run(engine)
    first, second = events.done[0].stats.snapshots
    num_prompt = len(prompt(0, WORDS, suffix=suffix).token_ids)
    assert (first.revision, first.kept_tokens, first.redone_tokens) == (0, 0, num_prompt)
    assert first.draft_tokens == 0 and second.draft_tokens > 0
    assert second.reused_tokens == reused
    assert second.redone_tokens == 5 + 30 - reused
    assert second.kept_tokens == num_prompt - 5 - 30 + kept


def test_a_draft_is_verified_in_the_pass_that_brings_the_new_prompt() -> None:
    engine = make_engine(min_speculative_step_tokens=500)
    session, events = open_session(engine, sampling=short(), draft_first_sentence=False)
    engine.update(session, prompt(0, WORDS))
    run(engine)
    engine.update(session, prompt(1, (*WORDS, 63)))
    report = engine.step()
    assert report is not None and report.num_decode_tokens > 0 and report.num_prefill_tokens == 3
    run(engine)
    engine.commit(session, prompt(2, (*WORDS, 63)))
    run(engine)
    assert list(events.reply(0)) == greedy_twin(prompt(2, (*WORDS, 63)).token_ids, 12)[0]
    assert events.done[0].stats.verify_passes >= 1


def test_a_transcript_that_flips_back_finds_its_draft() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(), draft_first_sentence=False)
    for revision, words in enumerate((WORDS, WORDS[:9], WORDS)):
        engine.update(session, prompt(revision, words))
        if revision < 2:
            run(engine)
    engine.commit(session, prompt(3, WORDS))
    engine.step()
    assert list(events.reply(0)) == greedy_twin(prompt(0, WORDS).token_ids, 12)[0]
    assert events.done[0].stats.passes_after_commit == 0


def test_rows_of_a_finished_reply_are_adopted_by_the_next_prompt() -> None:
    engine = make_engine(min_speculative_step_tokens=500)
    session, events = open_session(engine, sampling=short())
    first = prompt(0, WORDS)
    engine.commit(session, first)
    run(engine)
    assert_rows_equal_fresh_prefill(engine, session, 1e-4)
    reply = events.reply(0)
    history = (WORDS + (10, 11) + reply,)
    engine.update(session, prompt(1, WORDS[:4], history=history))
    report = engine.step()
    assert report is not None
    # the reply's last token never had a row; then four words and the suffix
    assert report.num_prefill_tokens == 1 + 4 + 2
    run(engine)
    engine.commit(session, prompt(2, WORDS[:6], history=history))
    run(engine)
    assert_rows_equal_fresh_prefill(engine, session, 1e-4)
    expected, _ = greedy_twin(prompt(2, WORDS[:6], history=history).token_ids, 12)
    assert list(events.reply(1)) == expected


def test_a_second_session_computes_only_what_follows_the_shared_prefix() -> None:
    engine = make_engine()
    prefix = tuple(range(60, 160))
    first, _ = open_session(engine, sampling=short())
    engine.commit(first, prompt(0, WORDS, prefix=prefix))
    run(engine)
    second, events = open_session(engine, sampling=short())
    engine.commit(second, prompt(0, WORDS[:3], prefix=prefix))
    report = engine.step()
    assert report is not None and report.num_prefill_tokens == 3 + 2
    run(engine)
    expected, _ = greedy_twin(prompt(0, WORDS[:3], prefix=prefix).token_ids, 12)
    assert list(events.reply(0)) == expected
    other, _ = open_session(engine, sampling=short(), cache_scope="other")
    engine.commit(other, prompt(0, WORDS[:3], prefix=prefix))
    report = engine.step()
    assert report is not None and report.num_prefill_tokens == len(prefix) + 3 + 2


def test_a_prompt_that_is_not_shared_is_computed_once_per_session() -> None:
    engine = make_engine()
    own = tuple(range(60, 160))
    for _ in range(2):
        session, events = open_session(engine, sampling=short())
        engine.commit(session, prompt(0, WORDS, prefix=(), history=(own,)))
        report = engine.step()
        assert report is not None and report.num_prefill_tokens == len(own) + len(WORDS) + 2
        run(engine)
        history = (own, (*WORDS, 10, 11, *events.reply(0)))
        engine.commit(session, prompt(1, WORDS[:4], prefix=(), history=history))
        report = engine.step()
        # the reply's last token never had a row; then four words and the suffix
        assert report is not None and report.num_prefill_tokens == 1 + 4 + 2
        run(engine)
    assert engine.stats().num_shared_rows == 0


def test_two_sessions_that_start_together_compute_their_prefix_once() -> None:
    engine = make_engine()
    prefix = tuple(range(60, 160))
    sessions = [open_session(engine, sampling=short()) for _ in range(2)]
    for session, _ in sessions:
        engine.commit(session, prompt(0, WORDS, prefix=prefix))
    num_prefill = 0
    while (report := engine.step()) is not None:
        num_prefill += report.num_prefill_tokens
        engine.check_integrity()
    assert num_prefill == len(prefix) + 2 * (len(WORDS) + 2)
    assert sessions[0][1].reply(0) == sessions[1][1].reply(0)


def test_cancel_ends_the_reply_and_keeps_the_rows() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(100))
    engine.commit(session, prompt(0, WORDS))
    for _ in range(3):
        engine.step()
    engine.cancel(session)
    run(engine)
    assert events.done[0].reason == "cancelled"
    assert 0 < len(events.reply(0)) < 100
    assert_rows_equal_fresh_prefill(engine, session, 1e-4)


def test_truncate_forgets_the_rows_of_what_was_not_heard() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short())
    snapshot = prompt(0, WORDS)
    engine.commit(session, snapshot)
    run(engine)
    engine.truncate(session, 0, 2)
    run(engine)
    assert assert_rows_equal_fresh_prefill(engine, session, 1e-4) == snapshot.num_tokens + 2
    assert len(events.reply(0)) > 2


def test_a_commit_while_a_reply_runs_cancels_that_reply() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(60))
    engine.commit(session, prompt(0, WORDS))
    engine.step()
    assert engine.commit(session, prompt(1, WORDS[:5])) == 1
    run(engine)
    assert events.done[0].reason == "cancelled"
    assert list(events.reply(1)) == greedy_twin(prompt(1, WORDS[:5]).token_ids, 60)[0]


def test_a_snapshot_that_comes_during_a_reply_waits_for_its_end() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short())
    engine.commit(session, prompt(0, WORDS))
    engine.step()
    engine.update(session, prompt(1, WORDS[:4]))
    run(engine)
    end = events.all.index(events.done[0])
    assert all(events.all.index(draft) > end for draft in events.drafts)
    assert events.drafts and events.drafts[-1].revision == 1


@pytest.mark.parametrize("ending", ["cancel", "truncate"])
def test_a_snapshot_that_waits_is_worked_on_when_the_reply_is_stopped(ending: str) -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=short(60))
    engine.commit(session, prompt(0, WORDS))
    for _ in range(3):
        engine.step()
    engine.update(session, prompt(1, WORDS[:4]))
    engine.step()
    assert not events.drafts
    if ending == "cancel":
        engine.cancel(session)
    else:
        engine.truncate(session, 0, 1)
    run(engine)
    assert events.done[0].reason == "cancelled"
    assert events.drafts and events.drafts[-1].revision == 1


def test_without_speculation_nothing_is_kept_before_commit() -> None:
    engine = make_engine()
    session, events = open_session(
        engine, sampling=short(), trigger=SpeculationTrigger.OFF, score_snapshots=True
    )
    engine.update(session, prompt(0, WORDS))
    while (report := engine.step()) is not None:
        assert not report.is_charged or report.num_tokens == 0
    assert [score.revision for score in events.scores] == [0] and not events.drafts
    engine.commit(session, prompt(1, WORDS))
    report = engine.step()
    assert report is not None and report.is_charged
    assert report.num_prefill_tokens == len(WORDS) + 2  # the shared prefix is there already
    run(engine)
    stats = events.done[0].stats
    assert stats.drafted_tokens == 0 and stats.num_passes == stats.passes_after_commit


def test_pause_only_keeps_a_draft_for_an_equal_prompt_alone() -> None:
    engine = make_engine()
    settings = {
        "sampling": short(),
        "trigger": SpeculationTrigger.PAUSE,
        "keep_drafts": False,
        "draft_first_sentence": False,
    }
    same, same_events = open_session(engine, **settings)
    engine.update(same, prompt(0, WORDS, at_pause=True))
    run(engine)
    engine.commit(same, prompt(1, WORDS, at_pause=True))
    run(engine)
    assert same_events.done[0].stats.passes_after_commit == 0
    other, events = open_session(engine, **settings)
    engine.update(other, prompt(0, WORDS[:8]))
    run(engine)
    assert not events.drafts
    engine.update(other, prompt(1, WORDS, at_pause=True))
    run(engine)
    engine.commit(other, prompt(2, (*WORDS, 63), at_pause=True))
    run(engine)
    assert events.done[0].stats.accepted_tokens == 0


def test_the_score_is_the_same_with_and_without_trailing_punctuation() -> None:
    engine = make_engine()
    session, events = open_session(engine)
    engine.update(session, prompt(0, WORDS))
    run(engine)
    num_steps = engine.stats().num_steps
    engine.update(session, prompt(1, (*WORDS, 63)))
    engine.step()
    run(engine)
    assert [score.revision for score in events.scores] == [0, 1]
    assert events.scores[0].end_probability == events.scores[1].end_probability
    assert 0 < events.scores[0].end_probability < 1
    assert engine.stats().num_steps > num_steps


def test_a_stop_string_that_straddles_tokens_ends_the_reply_before_it() -> None:
    engine = make_engine()
    plain, events = open_session(engine, sampling=short(40))
    engine.commit(plain, prompt(0, WORDS))
    run(engine)
    text = events.text(0)
    stop = text[3:6]
    session, stopped = open_session(engine, sampling=short(40), stop=(stop,))
    engine.update(session, prompt(0, WORDS))
    run(engine)
    engine.commit(session, prompt(1, WORDS))
    run(engine)
    assert stopped.text(0) == text[: text.index(stop)]
    assert stopped.done[0].reason == "stop"


def test_errors_that_can_be_seen_at_once_are_raised_at_once() -> None:
    engine = make_engine(max_sessions=1, max_sequence_tokens=120, min_reply_tokens=20)
    with pytest.raises(BadSamplingParams):
        open_session(engine, sampling=SamplingParams(top_p=0))
    with pytest.raises(BadSessionConfig):
        open_session(engine, stop=("",))
    session, _ = open_session(engine)
    with pytest.raises(TooManySessions):
        open_session(engine)
    engine.update(session, prompt(3, WORDS))
    with pytest.raises(StaleRevision, match="3 does not rise above 3"):
        engine.update(session, prompt(3, WORDS))
    with pytest.raises(StaleRevision):
        engine.commit(session, prompt(3, WORDS[:2]))
    with pytest.raises(PromptTooLong, match="takes 100"):
        engine.update(session, prompt(4, WORDS * 4))
    with pytest.raises(EmptyPrompt):
        engine.update(session, Snapshot(5, (Segment("slot", "slot", ()),)))
    engine.close(session)
    engine.close(session)
    with pytest.raises(UnknownSession):
        engine.cancel(session)
    run(engine)
    assert engine.stats().num_sessions == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_speculation_is_given_up_for_another_sessions_commit_and_not_for_its_own(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    model = random_model("llama2", 0, dtype)
    monkeypatch.setattr("kernels.cpu_pass.LAYERS_BETWEEN_ASKING", 1)
    engine = make_engine(model)
    drafting, drafted = open_session(engine, sampling=short())
    other, answered = open_session(engine, sampling=short())
    forward, waiting = model.forward, [other, drafting]

    def commit_during_the_pass(batch: Any, arena: Any, may_go_on: Any = None) -> Any:
        if may_go_on is not None and waiting:
            engine.commit(waiting.pop(0), prompt(5, WORDS))
        return forward(batch, arena, may_go_on)

    monkeypatch.setattr(model, "forward", commit_during_the_pass)
    engine.update(drafting, prompt(0, WORDS[:9]))
    report = engine.step()  # the other session commits in its midst
    assert report is not None and report.num_passes == 0
    account = engine._sessions._sequences[drafting].reply.account
    assert (account.num_passes, account.computed_tokens) == (1, engine.stats().num_tokens)
    assert account.computed_tokens > 0 and engine.stats().num_steps == 1
    report = engine.step()
    assert report is not None and report.has_committed
    run(engine)  # the drafting session's own commit lets its pass end
    assert not waiting
    assert drafted.reply(0) == answered.reply(0) != ()
    assert engine.stats().longest_commit_wait_s > 0
    engine.check_integrity()


def test_a_failing_pass_ends_only_the_reply_it_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(max_failures_in_a_row=2, breaker_s=1.0)
    good, good_events = open_session(engine, sampling=short())
    bad, bad_events = open_session(engine, sampling=short())
    engine.commit(good, prompt(0, WORDS))
    engine.commit(bad, prompt(0, (258, *WORDS)))
    forward = engine._runner.model.forward

    def failing(batch, arena, may_go_on=None):  # type: ignore[no-untyped-def]
        if 258 in batch.token_ids.tolist():
            raise RuntimeError("the pass broke")
        return forward(batch, arena)

    monkeypatch.setattr(engine._runner.model, "forward", failing)
    run(engine)
    assert good_events.done[0].reason in ("stop", "length")
    assert bad_events.done[0].reason == "error" and bad_events.done[0].error == "the pass broke"
    # again and again: the breaker opens, commits are refused, and after its rest all is well
    for revision in (1, 2):
        engine.commit(bad, prompt(revision, (258, *WORDS, revision)))
        run(engine)
    assert bad_events.done[2].reason == "error"
    with pytest.raises(EngineUnavailable):
        open_session(engine)
    engine.commit(good, prompt(1, WORDS))
    run(engine)
    assert good_events.done[1].reason == "error"
    assert "try again in" in str(good_events.done[1].error)
    engine._clock.now_s += 2.0  # type: ignore[attr-defined]
    engine.commit(good, prompt(2, WORDS))
    run(engine)
    assert good_events.done[2].reason in ("stop", "length")


def test_an_event_handler_that_raises_does_not_stop_the_engine() -> None:
    engine = make_engine()

    def broken(event: object) -> None:
        raise ValueError("handler")

    bad = engine.open(SessionConfig(sampling=short()), broken)
    session, events = open_session(engine, sampling=short())
    engine.commit(bad, prompt(0, WORDS))
    engine.commit(session, prompt(0, WORDS))
    run(engine)
    assert events.done[0].reason in ("stop", "length")


def test_idle_sessions_give_their_rows_to_those_that_need_them() -> None:
    engine = make_engine(num_rows=160)
    sessions = [open_session(engine, sampling=short(8)) for _ in range(5)]
    for session, events in sessions:
        engine.commit(session, prompt(0, WORDS))
        run(engine)
        assert events.done[0].reason in ("stop", "length")
    assert len({events.reply(0) for _, events in sessions}) == 1


def test_a_prompt_that_no_rows_are_left_for_is_refused_and_the_rest_goes_on() -> None:
    engine = make_engine(num_rows=48)
    session, events = open_session(engine, sampling=short(8))
    engine.update(session, prompt(0, WORDS))
    run(engine)
    assert [failure.code for failure in events.failures] == ["cache_full"]
    engine.commit(session, prompt(1, WORDS))
    run(engine)
    assert events.done[0].reason == "error" and "KV rows" in str(events.done[0].error)
    engine.commit(session, prompt(2, WORDS[:2]))
    run(engine)
    assert events.done[1].reason in ("stop", "length")


def test_the_engine_thread_sleeps_until_something_comes_and_answers_from_there() -> None:
    engine = make_engine(tiny_model())
    finished = threading.Event()
    events = Events()

    def on_event(event) -> None:  # type: ignore[no-untyped-def]
        events(event)
        if events.done:
            finished.set()

    engine.start()
    session = engine.open(SessionConfig(sampling=short()), on_event)
    for revision in range(5):
        engine.update(session, prompt(revision, WORDS[: 5 + revision]))
    engine.commit(session, prompt(5, WORDS))
    assert finished.wait(20)
    engine.stop()
    engine.check_integrity()
    assert list(events.reply(0)) == greedy_twin(prompt(0, WORDS).token_ids, 12)[0]
    with pytest.raises(EngineUnavailable):
        open_session(engine)


def test_the_thread_outlives_a_step_that_fails_and_every_reply_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    sessions = [open_session(engine, sampling=short()) for _ in range(2)]
    with monkeypatch.context() as patch:
        failed = threading.Event()

        def broken(works: object, num_sessions: int) -> None:
            failed.set()
            raise RuntimeError("no plan")

        patch.setattr(engine._scheduler, "plan", broken)
        for session, _ in sessions:
            engine.commit(session, prompt(0, WORDS))
        engine.start()
        assert failed.wait(20)
    for session, _ in sessions:
        engine.commit(session, prompt(1, WORDS))
    until = time.monotonic() + 20
    while any(1 not in events.done for _, events in sessions):
        assert time.monotonic() < until
        time.sleep(0.01)
    engine.stop()
    for _, events in sessions:
        assert (events.done[0].reason, events.done[0].error) == ("error", "no plan")
        assert list(events.reply(1)) == greedy_twin(prompt(0, WORDS).token_ids, 12)[0]


def test_warm_up_leaves_nothing_behind() -> None:
    engine = make_engine()
    engine.warm_up()
    engine.check_integrity()
    stats = engine.stats()
    assert stats.num_sessions == 0 and stats.num_free_rows == stats.num_rows
    assert stats.num_steps > 0


@pytest.mark.parametrize(("device", "shares"), [("cpu", True), ("meta", False)])
def test_only_a_model_on_the_cpu_shares_it_with_the_other_workers(
    device: str, shares: bool
) -> None:
    model = copy(tiny_model())
    model.device = torch.device(device)
    assert Engine(model, TOKENIZER, EngineConfig(num_rows=64), Clock()).shares_cpu is shares


def test_a_proposer_model_saves_passes_and_changes_no_token() -> None:
    sampling = SamplingParams(max_tokens=24, temperature=0.8)
    replies, passes = [], []
    for proposer in (None, tiny_model()):
        config = EngineConfig(num_rows=1024, slot_rows=8)
        engine = Engine(tiny_model(), TOKENIZER, config, Clock(), proposer)
        session, events = open_session(engine, sampling=sampling, use_ngram_pool=False)
        engine.commit(session, prompt(0, WORDS))
        passes.append(run(engine))
        replies.append(events.reply(0))
    assert replies[0] == replies[1]
    assert passes[1] < passes[0]
