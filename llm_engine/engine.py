"""The engine: sessions in, reply events out, one forward pass per step.

A step takes what came in, asks every session what it wants to run, lets the scheduler choose, runs
one pass over the chosen tokens and hands each session its outcome. `start()` does that on a thread
of its own; `step()` does it inline, for tests and the virtual clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.errors import PassAbandoned
from llm_engine.breaker import CircuitBreaker
from llm_engine.engine_config import EngineConfig
from llm_engine.events import OnEvent, SamplingParams, SessionConfig, SessionId, TurnId
from llm_engine.kv_cache import KVCache
from llm_engine.mailbox import Commit, Mailbox
from llm_engine.model import Model
from llm_engine.prompt import Segment, Snapshot
from llm_engine.runner import Runner
from llm_engine.scheduler import Scheduler, Work
from llm_engine.sequence import Feed, Outcome
from llm_engine.session_check import check_session
from llm_engine.sessions import Sessions
from llm_engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
FAILED_STEP_REST_S = 0.1  # what fails at once must not fill the log


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step ran. `num_passes` counts charged passes: a step that only computed a baseline's
    end probability has none, and `is_charged` is False. A pass that was given up is reported as
    nothing: how long it took says nothing about how long such passes take."""

    num_prefill_tokens: int
    num_decode_tokens: int
    num_tokens: int
    num_passes: int
    has_committed: bool
    seconds: float
    is_charged: bool = True


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the engine was made, and how full it is now."""

    num_sessions: int
    num_rows: int
    num_free_rows: int
    num_shared_rows: int
    num_steps: int  # passes that were given up included, as in `num_tokens`
    num_tokens: int
    step_fixed_s: float
    step_per_token_s: float
    longest_commit_wait_s: float  # for a step under way to end or be given up


class Engine:
    """See the module's head. `open … close` only enqueue and may be called from any thread."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        proposer: Model | None = None,
    ) -> None:
        """`proposer`: a smaller model of the same vocabulary that guesses tokens to verify."""
        self.config = config or EngineConfig()
        self._tokenizer = tokenizer
        self._clock = clock
        self._max_tokens = min(self.config.max_sequence_tokens, model.config.max_positions)
        self._mailbox = Mailbox(self.config.max_sessions, self.max_prompt_tokens)
        self._cache = KVCache(self.config.num_rows)
        self._scheduler = Scheduler(self.config)
        self._runner = Runner(model, tokenizer, self.config)
        self.shares_cpu = model.device.type == "cpu"  # with whatever else runs on this machine
        self._breaker = CircuitBreaker(self.config.max_failures_in_a_row, self.config.breaker_s)
        self._sessions = Sessions(
            self.config,
            tokenizer,
            self._cache,
            self._breaker,
            self._scheduler.cost,
            self._runner.move,
            self._max_tokens,
            proposer,
        )
        self._thread: threading.Thread | None = None
        self._num_steps = 0
        self._num_tokens = 0
        self._longest_commit_wait_s = 0.0
        self._may_go_on: Callable[[], bool] | None = None  # asked during the newest pass

    @property
    def max_prompt_tokens(self) -> int:
        """Longer prompts are refused (PromptTooLong)."""
        return self._max_tokens - self.config.min_reply_tokens

    # ---- any thread

    def open(self, config: SessionConfig, on_event: OnEvent) -> SessionId:
        """A session whose events go to `on_event`, on the engine's thread.

        Raises TooManySessions, EngineUnavailable, BadSessionConfig, BadSamplingParams.
        """
        check_session(config)
        self._breaker.require_closed(self._clock())
        return self._mailbox.open(config, on_event)

    def update(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """The newest prompt; supersedes all earlier ones. While a reply runs it waits for its end.

        Raises UnknownSession, StaleRevision, EmptyPrompt, PromptTooLong.
        """
        self._mailbox.update(session_id, snapshot)

    def commit(self, session_id: SessionId, snapshot: Snapshot) -> TurnId:
        """The prompt is final: deliver its reply. A reply that still runs is cancelled first.

        Turns are numbered 0, 1, 2 … per session; each ends in exactly one ReplyDone.
        Raises UnknownSession, StaleRevision, EmptyPrompt, PromptTooLong.
        """
        return self._mailbox.commit(session_id, snapshot, self._clock())

    def cancel(self, session_id: SessionId) -> None:
        """Stop the reply, or drafting until the next snapshot. Raises UnknownSession."""
        self._mailbox.cancel(session_id)

    def truncate(self, session_id: SessionId, turn: TurnId, num_reply_tokens: int) -> None:
        """Forget what was not heard of a reply; a running one is stopped. Raises UnknownSession."""
        self._mailbox.truncate(session_id, turn, num_reply_tokens)

    def close(self, session_id: SessionId) -> None:
        """Give the session's rows back. Idempotent."""
        self._mailbox.close_session(session_id)

    def hold_speculation(self, holder: str) -> None:
        """Compute nothing ahead until `release_speculation`: the processor is needed for what a
        turn waits for (a final decode, a piece of speech). Committed replies go on. Idempotent."""
        self._mailbox.hold(holder)

    def release_speculation(self, holder: str) -> None:
        """Idempotent; speculation goes on when the last holder has let go."""
        self._mailbox.release(holder)

    def hold_reply(self, session_id: SessionId) -> None:
        """Decide no further tokens of the session's reply until `release_reply` (or its next
        commit, cancel or close): what it has said so far is being spoken, and the caller waits for
        that. Idempotent; unknown sessions are fine."""
        self._mailbox.hold_reply(session_id)

    def release_reply(self, session_id: SessionId) -> None:
        """Idempotent."""
        self._mailbox.release_reply(session_id)

    def start(self) -> None:
        """Run steps on a thread of the engine's own. Raises RuntimeError if it runs already."""
        if self._thread is not None:
            raise RuntimeError("the engine's thread runs already")
        self._thread = threading.Thread(target=self._run, name="llm-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its step; running replies end as cancelled. Idempotent."""
        self._mailbox.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._sessions.stop_all(self._clock())

    def warm_up(self) -> None:
        """Run passes of the usual sizes, so that the first call is as fast as the tenth.

        To be called before `start`.
        """
        self._runner.warm_up()
        token = min(self._tokenizer.sentence_end_ids, default=0)
        plain = SamplingParams(max_tokens=2)
        mixed = replace(plain, temperature=0.8, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=2)
        calls = [(num_tokens, plain) for num_tokens in (1, 4, 16, 48, 1)] + [(1, mixed)]
        if self._runner.model.device.type == "cuda":  # where each size is compiled by itself
            calls += [(self.config.max_step_tokens, plain)]
        for num_tokens, sampling in calls:
            segments = (Segment("warm-up", "history", (token,) * num_tokens),)
            config = SessionConfig(sampling=sampling)
            session_id = self.open(config, lambda event: None)
            self.commit(session_id, Snapshot(0, segments))
            while self.step() is not None:
                pass
            self.close(session_id)
        self.step()

    # ---- the engine's thread

    def _run(self) -> None:
        while not self._mailbox.is_closed:
            try:
                is_idle = self.step() is None
            except Exception as error:  # of no session in particular: those have their own guards
                logger.exception("a step failed")
                self._breaker.on_failure(self._clock())
                self._sessions.fail_all(error, self._clock())
                self._mailbox.wait(FAILED_STEP_REST_S)
                continue
            if is_idle:
                self._mailbox.wait()

    def step(self) -> StepReport | None:
        """One iteration; None if there was nothing to do."""
        started = self._clock()
        self._may_go_on = None
        commands = self._mailbox.take()
        for command in commands:
            if isinstance(command, Commit):
                waited_s = started - command.at_s
                self._longest_commit_wait_s = max(self._longest_commit_wait_s, waited_s)
            self._sessions.carry_out(command, started)
        works = [work for work in self._sessions.works(started) if self._may_run(work)]
        grants = self._scheduler.plan(works, len(self._sessions))
        feeds = [
            feed
            for grant in grants
            if (feed := self._sessions.feed(grant, self._num_steps, started)) is not None
        ]
        if not feeds:
            is_idle = not commands and not grants
            return None if is_idle else StepReport(0, 0, 0, 0, False, self._clock() - started)
        self._may_go_on = self._patience(feeds)
        try:
            outcomes = self._run_pass(feeds, self._may_go_on)
        except PassAbandoned:
            self._sessions.abandon(feeds)
            return StepReport(0, 0, 0, 0, False, self._clock() - started)
        finally:
            self._num_steps += 1
            self._num_tokens += sum(feed.num_tokens for feed in feeds)
        now_s = self._clock()
        report = _report(feeds, now_s - started)
        self._scheduler.cost.add(report.num_tokens, report.seconds)
        for feed, outcome in zip(feeds, outcomes, strict=True):
            if outcome is not None:
                self._sessions.advance(feed, outcome, now_s)
        return report

    def _may_run(self, work: Work) -> bool:
        if work.work_class.is_committed:
            return work.session_id not in self._mailbox.held_replies
        return not self._mailbox.is_held

    def _patience(self, feeds: list[Feed]) -> Callable[[], bool] | None:
        """Speculation is given up in the middle for what is worth more; what it had computed of
        this step is lost."""
        if any(feed.sequence.is_committed for feed in feeds):
            return None
        stakes = {feed.sequence.session_id: feed.sequence.stake(feed) for feed in feeds}
        return lambda: not self._mailbox.outweighs(stakes)

    def _run_pass(
        self, feeds: list[Feed], may_go_on: Callable[[], bool] | None = None
    ) -> list[Outcome | None]:
        """Outcomes of one pass. If it fails, each session runs alone: only the culprit ends."""
        try:
            outcomes: list[Outcome | None] = [*self._runner.run(feeds, may_go_on)]
        except PassAbandoned:
            raise
        except Exception as error:
            if len(feeds) > 1:
                return [outcome for feed in feeds for outcome in self._run_pass([feed])]
            sequence, now_s = feeds[0].sequence, self._clock()
            logger.exception("a pass of session %s failed", sequence.session_id)
            self._breaker.on_failure(now_s)
            self._sessions.fail(sequence, error, now_s)
            return [None]
        self._breaker.on_success()
        return outcomes

    # ---- looking in

    def would_go_on(self) -> bool:
        """Whether the newest step would not be given up now, if it were still running: for shells
        that only simulate how long it takes."""
        return self._may_go_on is None or self._may_go_on()

    def stats(self) -> EngineStats:
        """How full and how fast the engine is."""
        return EngineStats(
            num_sessions=self._mailbox.num_sessions,
            num_rows=self._cache.num_rows,
            num_free_rows=self._cache.num_free_rows,
            num_shared_rows=self._cache.num_shared_rows,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            step_fixed_s=self._scheduler.cost.fixed_s,
            step_per_token_s=self._scheduler.cost.per_token_s,
            longest_commit_wait_s=self._longest_commit_wait_s,
        )

    def check_integrity(self) -> None:
        """Assert that every row is free or owned once. Only while no step runs."""
        self._cache.check_integrity()


def _report(feeds: list[Feed], seconds: float) -> StepReport:
    num_tokens = sum(feed.num_tokens for feed in feeds)
    num_prompt = sum(feed.num_prompt_tokens for feed in feeds)
    return StepReport(
        num_prefill_tokens=num_prompt,
        num_decode_tokens=num_tokens - num_prompt,
        num_tokens=num_tokens,
        num_passes=int(feeds[0].is_charged),
        has_committed=any(feed.sequence.is_running for feed in feeds),
        seconds=seconds,
        is_charged=feeds[0].is_charged,
    )
