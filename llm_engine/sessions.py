"""All open sessions: carries out their commands, finds rows for them, tells them what happened.

Lives on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from llm_engine.breaker import CircuitBreaker
from llm_engine.engine_config import EngineConfig
from llm_engine.errors import CacheFull, EngineError
from llm_engine.events import (
    EngineEvent,
    OnEvent,
    ReplyDone,
    SessionFailed,
    SessionId,
    TurnId,
    TurnStats,
)
from llm_engine.kv_cache import KVCache
from llm_engine.layout import Layout
from llm_engine.mailbox import Cancel, Close, Command, Commit, Open, Truncate, Update
from llm_engine.model import Model
from llm_engine.model_proposer import ModelProposer
from llm_engine.prompt import Snapshot
from llm_engine.relayout import Moves
from llm_engine.scheduler import CostModel, Grant, Work
from llm_engine.sequence import Feed, Outcome, Sequence
from llm_engine.sequence_kv import SequenceKV
from llm_engine.tokenizer import Tokenizer
from llm_engine.turn_reply import TurnReply

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Sessions:
    """See the module's head. `move` carries out row work at once."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        cache: KVCache,
        breaker: CircuitBreaker,
        cost: CostModel,
        move: Callable[[Moves], None],
        max_tokens: int,
        proposer: Model | None,
    ) -> None:
        self._config = config
        self._proposer = proposer
        self._tokenizer = tokenizer
        self._cache = cache
        self._breaker = breaker
        self._cost = cost
        self._move = move
        self._max_tokens = max_tokens
        self._sequences: dict[SessionId, Sequence] = {}
        self._held: dict[SessionId, Snapshot] = {}  # came while a reply ran: next when it is over
        self._in_pass: set[SessionId] = set()  # their feeds point into their rows
        self._unopened: dict[SessionId, tuple[OnEvent, str]] = {}  # whom to tell, and why

    def __len__(self) -> int:
        return len(self._sequences)

    # ---- commands

    def carry_out(self, command: Command, now_s: float) -> None:
        """What cannot be done is told to the session; the others never notice."""
        if isinstance(command, Open):
            self._try_open(command)
            return
        sequence = self._sequences.get(command.session_id)
        if sequence is None:
            self._answer_unopened(command)
            return
        try:
            self._carry_out(sequence, command, now_s)
        except Exception as error:
            self._break_off(sequence, error, now_s)

    def _carry_out(self, sequence: Sequence, command: Command, now_s: float) -> None:
        match command:
            case Update(snapshot=snapshot):
                self._update(sequence, snapshot, now_s)
            case Commit():
                self._commit(sequence, command, now_s)
            case Cancel():
                self._emit(sequence, sequence.stop(now_s))
                self._take_held(sequence, now_s)
            case Truncate(turn=turn, num_reply_tokens=num_tokens):
                if sequence.is_running and turn == sequence.turn:
                    self._emit(sequence, sequence.stop(now_s))
                sequence.forget(turn, num_tokens)
                self._take_held(sequence, now_s)
            case Close():
                self._close(sequence, now_s)

    def _try_open(self, command: Open) -> None:
        session_id, on_event = command.session_id, command.on_event
        try:
            self._open(command)
        except Exception as error:
            logger.exception("session %s could not be opened", session_id)
            self._unopened[session_id] = on_event, _why(error)
            _tell(on_event, session_id, [SessionFailed(session_id, "engine_error", _why(error))])

    def _answer_unopened(self, command: Command) -> None:
        """A session that is not here was closed since, or could not be opened: then its commits
        end at once."""
        session_id = command.session_id
        on_event, why = self._unopened.get(session_id, (None, ""))
        if on_event is not None and isinstance(command, Commit):
            done = ReplyDone(session_id, command.turn, "error", TurnStats(), why)
            _tell(on_event, session_id, [done])
        if isinstance(command, Close):
            self._unopened.pop(session_id, None)

    def _open(self, command: Open) -> None:
        config = command.config
        reply = TurnReply(
            command.session_id,
            config,
            self._tokenizer,
            self._config.tie_bound,
            self._cost.token_cost,
            None if self._proposer is None else ModelProposer(self._proposer, self._max_tokens),
        )
        # last, when nothing can go wrong any more: from here on the cache knows it
        kv = SequenceKV(self._cache, config.cache_scope, self._config.slot_rows)
        self._sequences[command.session_id] = Sequence(
            command.session_id, config, command.on_event, kv, reply, self._max_tokens
        )

    def _update(self, sequence: Sequence, snapshot: Snapshot, now_s: float) -> None:
        if sequence.is_running:
            self._held[sequence.session_id] = snapshot
            return
        if self._breaker.is_open(now_s):
            return
        try:
            self._set_prompt(sequence, snapshot, now_s, None)
        except CacheFull as error:
            self.fail(sequence, error, now_s)
        except Exception as error:
            self._break_off(sequence, error, now_s)

    def _commit(self, sequence: Sequence, command: Commit, now_s: float) -> None:
        self._held.pop(sequence.session_id, None)
        if sequence.is_running:
            self._emit(sequence, sequence.stop(now_s))
        try:
            self._breaker.require_closed(now_s)
            self._set_prompt(sequence, command.snapshot, command.at_s, command.turn)
        except EngineError as error:
            self._emit(sequence, sequence.refuse(command.turn, now_s, str(error)))
        except Exception as error:
            logger.exception("a commit of session %s failed", sequence.session_id)
            sequence.drop_rows()
            self._emit(sequence, sequence.refuse(command.turn, now_s, _why(error)))

    def _set_prompt(
        self, sequence: Sequence, snapshot: Snapshot, now_s: float, turn: TurnId | None
    ) -> None:
        layout = Layout.of(snapshot, self._tokenizer.is_punctuation)
        moves, events = self._with_room(
            sequence,
            lambda: sequence.set_prompt(snapshot, layout, now_s, turn),
            turn is not None,
        )
        self._move(moves)
        self._emit(sequence, events)

    def _take_held(self, sequence: Sequence, now_s: float) -> None:
        if not sequence.is_running and sequence.session_id in self._held:
            self._update(sequence, self._held.pop(sequence.session_id), now_s)

    def _close(self, sequence: Sequence, now_s: float) -> None:
        self._emit(sequence, sequence.stop(now_s))
        sequence.kv.close()
        self._held.pop(sequence.session_id, None)
        del self._sequences[sequence.session_id]

    # ---- steps

    def works(self, now_s: float) -> list[Work]:
        """What every session wants to run."""
        return [
            work for sequence in self._sequences.values() if (work := self._work(sequence, now_s))
        ]

    def _work(self, sequence: Sequence, now_s: float) -> Work | None:
        for _ in range(2):  # once more for the snapshot that waited
            try:
                return sequence.work()
            except Exception as error:
                self._break_off(sequence, error, now_s)
        return None

    def feed(self, grant: Grant, step: int, now_s: float) -> Feed | None:
        """The granted tokens, ready to run; None if there are no rows for them, or if a session
        that was served before it in this step took those it had."""
        sequence = self._sequences[grant.session_id]
        if not sequence.kv.is_laid_out:
            return None
        sequence.last_served = step
        try:
            feed = self._with_room(
                sequence, lambda: sequence.feed(grant.num_tokens), sequence.is_running
            )
            # at once and only once: whoever is next may get the rows that these copies read
            self._move(feed.moves)
        except CacheFull as error:
            self.fail(sequence, error, now_s)
            return None
        except Exception as error:
            self._break_off(sequence, error, now_s)
            return None
        self._in_pass.add(sequence.session_id)
        return feed

    def advance(self, feed: Feed, outcome: Outcome, now_s: float) -> None:
        sequence = feed.sequence
        self._in_pass.discard(sequence.session_id)
        try:
            self._emit(sequence, sequence.advance(feed, outcome, now_s))
        except Exception as error:
            self._break_off(sequence, error, now_s)
        self._take_held(sequence, now_s)

    def fail(self, sequence: Sequence, error: Exception, now_s: float) -> None:
        """End what this session is doing; its next snapshot starts afresh."""
        self._in_pass.discard(sequence.session_id)
        was_running = sequence.is_running
        events = sequence.stop(now_s, _why(error))
        if not was_running:
            code = error.code if isinstance(error, EngineError) else "engine_error"
            events.append(SessionFailed(sequence.session_id, code, _why(error)))
        self._emit(sequence, events)
        self._take_held(sequence, now_s)

    def _break_off(self, sequence: Sequence, error: Exception, now_s: float) -> None:
        """End what this session is doing after an error outside a pass, which nobody foresaw: what
        its rows hold is not sure."""
        logger.error("session %s failed", sequence.session_id, exc_info=error)
        sequence.drop_rows()
        self.fail(sequence, error, now_s)

    def fail_all(self, error: Exception, now_s: float) -> None:
        """End what every session is doing."""
        self._in_pass.clear()
        for sequence in self._sequences.values():
            try:
                if not sequence.is_idle:
                    self.fail(sequence, error, now_s)
            except Exception as another:
                self._break_off(sequence, another, now_s)

    def abandon(self, feeds: Iterable[Feed]) -> None:
        """The pass over `feeds` was given up: what it wrote is lost, what it cost is not."""
        for feed in feeds:
            self._in_pass.discard(feed.sequence.session_id)
            feed.sequence.count_pass(feed)

    def stop_all(self, now_s: float) -> None:
        """End every running reply."""
        for sequence in self._sequences.values():
            self._emit(sequence, sequence.stop(now_s))

    # ---- helpers

    def _with_room(self, asker: Sequence, act: Callable[[], T], is_committed: bool) -> T:
        """Do `act` for `asker`; where rows are short, sessions with nothing to do give theirs up,
        the longest idle first, then for committed work those that only draft. Raises CacheFull."""
        while True:
            try:
                return act()
            except CacheFull:
                if not self._evict(asker, is_committed):
                    raise

    def _evict(self, asker: Sequence, for_committed: bool) -> bool:
        """Never rows that the coming pass reads and writes; the asker's own old rows last."""
        owners = [
            sequence
            for sequence in self._sequences.values()
            if sequence.kv.is_laid_out and sequence.session_id not in self._in_pass
        ]
        victims = [sequence for sequence in owners if sequence.is_idle]
        if not victims and for_committed:
            victims = [sequence for sequence in owners if not sequence.is_running]
        if not victims:
            return False
        min(victims, key=lambda s: (s is asker, s.last_served)).drop_rows()
        return True

    def _emit(self, sequence: Sequence, events: Iterable[EngineEvent]) -> None:
        _tell(sequence.on_event, sequence.session_id, events)


def _tell(on_event: OnEvent, session_id: SessionId, events: Iterable[EngineEvent]) -> None:
    for event in events:
        try:
            on_event(event)
        except Exception:
            logger.exception("on_event of session %s failed", session_id)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
