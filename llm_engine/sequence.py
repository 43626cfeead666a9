"""One session in the engine: its newest prompt, the rows it has, what runs next.

    index      0 ........... p ............ p + d ........... p + d + q
    token      prompt        reply decided  proposals
    row        some          all but last   none before the pass

A pass brings the prompt tokens that have no rows, the reply tokens that have none, and proposals
for what follows. The logits after the last decided token and after every proposal give the next
tokens: as many as the proposals were right, and one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_engine.events import (
    EngineEvent,
    OnEvent,
    SessionConfig,
    SessionId,
    SnapshotScored,
    SnapshotWork,
    SpeculationTrigger,
    SuffixPolicy,
    TurnId,
)
from llm_engine.layout import Layout
from llm_engine.mailbox import Stake
from llm_engine.prompt import Snapshot
from llm_engine.relayout import Moves
from llm_engine.scheduler import Work, WorkClass
from llm_engine.sequence_kv import Piece, SequenceKV
from llm_engine.turn_reply import TurnReply

# The end of the caller's turn hangs on a pause's score: the pass that reads it checks no more of
# the old draft than is spoken first.
MAX_SCORED_PROPOSALS = 8


@dataclass(frozen=True, slots=True)
class Feed:
    """What one session brings to a pass.

    `score_at` and `sample_from` are offsets into the feed's tokens: the token whose logits give the
    end probability, and the first of those whose logits give reply tokens (all from there on).
    """

    sequence: Sequence
    moves: Moves  # to be done before any other session's, and once even if the pass is repeated
    pieces: tuple[Piece, ...]
    num_tokens: int
    num_prompt_tokens: int
    score_at: int | None
    sample_from: int | None
    proposals: tuple[int, ...]
    is_charged: bool
    first_index: int  # of the tokens it brings

    @property
    def num_samples(self) -> int:
        return 0 if self.sample_from is None else self.num_tokens - self.sample_from


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass says about one feed: the token after each sampled place, and its margin."""

    token_ids: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()
    end_probability: float | None = None


class Sequence:
    """See the module's head. Owned by the engine's thread; methods return the events they cause."""

    def __init__(
        self,
        session_id: SessionId,
        config: SessionConfig,
        on_event: OnEvent,
        kv: SequenceKV,
        reply: TurnReply,
        max_tokens: int,
    ) -> None:
        self.session_id = session_id
        self.config = config
        self.on_event = on_event
        self.kv = kv
        self.reply = reply
        self.turn: TurnId = 0
        self.is_committed = False
        self.is_over = False  # the turn's reply has ended; the next snapshot begins another turn
        self.last_served = 0  # number of the step
        self._max_tokens = max_tokens
        self._is_resting = False  # nothing is run until the next snapshot
        self._snapshot: Snapshot | None = None
        self._is_stable_change = False  # it came with other stable words than the one before
        self._layout: Layout | None = None
        self._score: tuple[int, float] | None = None  # index it was read at, probability
        self._wants_score = False
        self._uncharged_from: int | None = None  # rows from this index on serve a score alone

    @property
    def is_running(self) -> bool:
        """A committed reply is being made."""
        return self.is_committed and not self.is_over

    @property
    def is_idle(self) -> bool:
        """Nothing is to be run before the next snapshot; the rows may be taken away."""
        return self._is_at_rest or not self._ranges()  # a running reply always has some

    @property
    def _is_at_rest(self) -> bool:
        return self.is_over or self._is_resting or not self.kv.is_laid_out

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return () if self._layout is None else self._layout.token_ids

    # ---- prompts

    def set_prompt(
        self, snapshot: Snapshot, layout: Layout, now_s: float, turn: TurnId | None = None
    ) -> tuple[Moves, list[EngineEvent]]:
        """Work on `snapshot` from now on; with `turn` it is committed. On CacheFull nothing has
        changed."""
        policy = self.config.draft_policy
        if turn is not None or snapshot.at_pause:
            policy = self.config.suffix_policy
        stands, moves = self._stands(layout, policy), Moves()
        if not stands:
            moves = self.kv.rebuild(layout, policy, same_turn=not self.is_over)
            if self._score is not None and self._score[0] >= moves.num_kept:
                self._score = None
        old_ids = self.prompt_ids
        if self.is_over:
            self.turn += 1
            self.reply.start_turn()
            old_ids = ()  # even if the words are the same again, nothing of their reply is known
        if not stands:
            room = self._max_tokens - len(layout.token_ids)
            self.reply.change_prompt(
                old_ids, layout.token_ids, room=room, is_exact=self.kv.is_exact
            )
        num_changes = 0 if self._snapshot is None else self._snapshot.num_stable_changes
        self._is_stable_change = snapshot.num_stable_changes != num_changes
        self._snapshot, self._layout = snapshot, layout
        self.is_committed, self.is_over, self._is_resting = turn is not None, False, False
        self._charge(None if stands else moves.num_kept)
        if self._is_charged:
            self.reply.account.snapshots.append(self._snapshot_work(moves, stands=stands))
        if turn is None:
            return moves, self._read_score(snapshot) + self.reply.show(snapshot.revision)
        self.turn = turn
        self._wants_score = False
        if snapshot.max_reply_tokens is not None:
            self.reply.limit(snapshot.max_reply_tokens)
            self.kv.truncate(len(layout.token_ids) + len(self.reply.draft))
        missing = sum(stop - start for start, stop in self.kv.missing())
        self.reply.account.commit(now_s, len(layout.token_ids), missing)
        return moves, self._deliver(now_s)

    def _snapshot_work(self, moves: Moves, *, stands: bool) -> SnapshotWork:
        assert self._snapshot is not None
        num_prompt = len(self.prompt_ids)
        num_redone = sum(stop - start for start, stop in self.kv.missing())
        num_reused = 0 if stands else max(0, num_prompt - num_redone - moves.num_kept)
        return SnapshotWork(
            revision=self._snapshot.revision,
            prompt_tokens=num_prompt,
            kept_tokens=num_prompt - num_redone - num_reused,
            reused_tokens=num_reused,
            redone_tokens=num_redone,
            draft_tokens=self.reply.num_candidates,
        )

    def _stands(self, layout: Layout, policy: SuffixPolicy) -> bool:
        """The new prompt is the old one and its rows are good enough for `policy`."""
        old = self._layout
        return (
            old is not None
            and not self.is_over
            and self.kv.is_laid_out
            and old.token_ids == layout.token_ids
            and old.num_prefix_tokens == layout.num_prefix_tokens
            and (policy is not SuffixPolicy.RECOMPUTE or self.kv.is_exact)
        )

    @property
    def _is_drafting(self) -> bool:
        """The newest snapshot is one that this session drafts on."""
        assert self._snapshot is not None
        match self.config.trigger:
            case SpeculationTrigger.PARTIAL:
                return True
            case SpeculationTrigger.STABLE:
                return self._is_stable_change or self._snapshot.at_pause
            case SpeculationTrigger.PAUSE:
                return self._snapshot.at_pause
            case SpeculationTrigger.OFF:
                return False

    @property
    def _is_warming(self) -> bool:
        """Nothing has been said yet: what surrounds the words is computed, nothing is drafted."""
        assert self._layout is not None
        return not self.is_committed and self._layout.words_index is not None

    @property
    def _is_charged(self) -> bool:
        is_followed = self.config.trigger is SpeculationTrigger.STABLE  # whether drafted on or not
        return self.is_committed or is_followed or self._is_drafting or self._is_warming

    def _charge(self, num_kept: int | None) -> None:
        """Accounted work starts without the rows that were computed for a score alone."""
        before = self._uncharged_from
        if self._is_charged:
            if before is not None:
                self.kv.truncate(before)
            self._uncharged_from = None
        elif num_kept is not None:
            self._uncharged_from = num_kept if before is None else min(before, num_kept)

    def _read_score(self, snapshot: Snapshot) -> list[EngineEvent]:
        assert self._layout is not None
        index = self._layout.score_index
        self._wants_score = index is not None and self.config.score_snapshots
        if self._wants_score and self._score is not None and self._score[0] == index:
            self._wants_score = False
            return [SnapshotScored(self.session_id, snapshot.revision, self._score[1])]
        return []

    # ---- what runs next

    @property
    def _wants_tokens(self) -> bool:
        """Further reply tokens are to be decided."""
        if self.is_committed:
            return self.reply.draft.finish is None
        assert self._snapshot is not None
        if self._is_warming or not self._is_drafting:
            return False
        at_pause = self._snapshot.at_pause
        is_spent = self.reply.account.drafted_tokens >= self.config.max_turn_draft_tokens
        return (at_pause or not is_spent) and self.reply.wants_first_tokens(at_pause=at_pause)

    def _ranges(self) -> list[tuple[int, int]]:
        """Index ranges to run next, ascending: tokens without rows, and those whose logits are
        wanted although they have one."""
        ranges = self.kv.missing()
        assert self._layout is not None
        score_index = self._layout.score_index
        is_there = not any(score_index in range(start, stop) for start, stop in ranges)
        if self._wants_score and score_index is not None and is_there:
            ranges = sorted([*ranges, (score_index, score_index + 1)])
        if self._is_warming:
            if self.config.draft_policy is SuffixPolicy.RECOMPUTE:
                return _clipped(ranges, self._layout.words_index or 0)
            return ranges  # what follows the words can be moved behind them
        if not self._is_charged:
            if not self._wants_score or score_index is None:
                return []
            return _clipped(ranges, score_index + 1)
        num_prompt = len(self.prompt_ids)
        known = num_prompt + len(self.reply.draft)
        start = num_prompt + self.kv.num_reply_rows
        if not self._wants_tokens:
            known -= 1  # the last token's row is only needed to decide another
        elif start >= known and not (ranges and ranges[-1][1] == known):
            start = known - 1
        if start < known:
            ranges.append((start, known))
        return ranges

    def work(self) -> Work | None:
        """What this session asks the scheduler for; None if nothing."""
        ranges = [] if self._is_at_rest else self._ranges()
        if not ranges:
            return None
        num_tokens = sum(stop - start for start, stop in ranges)
        if self._wants_tokens:
            num_tokens += len(self._proposals(self._max_tokens))
        prefix = self.kv.prefix
        prefix_key = None if prefix is None or prefix.is_filled else id(prefix)
        committed_at_s = self.reply.account.committed_at_s
        order = float(self.last_served) if committed_at_s is None else committed_at_s
        return Work(self.session_id, self._work_class(), num_tokens, order, prefix_key)

    def _work_class(self) -> WorkClass:
        assert self._snapshot is not None
        if self.is_committed:
            is_decode = not self.kv.missing() and len(self.reply.draft) > 0
            return WorkClass.COMMITTED_DECODE if is_decode else WorkClass.COMMITTED_PREFILL
        if not self._is_charged:
            return WorkClass.SCORE
        return WorkClass.PAUSE_DRAFT if self._snapshot.at_pause else WorkClass.DRAFT

    def feed(self, budget: int) -> Feed:
        """At most `budget` tokens (at least 1) for the next pass. Raises CacheFull."""
        assert self._layout is not None
        ranges = self._ranges()
        total = sum(stop - start for start, stop in ranges)
        is_sampled = self._wants_tokens and total <= budget
        num_decided = len(self.reply.draft)
        proposals = self._proposals(budget - total) if is_sampled else ()
        moves = Moves()
        if num_decided + len(proposals):
            moves = self.kv.reserve_reply(num_decided + len(proposals))
        tokens = (*self.prompt_ids, *self.reply.draft.token_ids)
        pieces: list[Piece] = []
        score_index = self._layout.score_index if self._wants_score else None
        score_at: int | None = None
        num_tokens = num_prompt_tokens = 0
        for start, stop in ranges:
            stop = min(stop, start + budget - num_tokens)
            if stop <= start:
                break
            if score_index is not None and start <= score_index < stop:
                score_at = num_tokens + score_index - start
            pieces += self.kv.pieces(start, tokens[start:stop])
            num_tokens += stop - start
            num_prompt_tokens += max(0, min(stop, len(self.prompt_ids)) - start)
        sample_from = num_tokens - 1 if is_sampled else None
        if proposals:
            pieces += self.kv.pieces(len(tokens), proposals)
            num_tokens += len(proposals)
        return Feed(
            self,
            moves,
            tuple(pieces),
            num_tokens,
            num_prompt_tokens,
            score_at,
            sample_from,
            proposals,
            self._is_charged,
            ranges[0][0],
        )

    def _proposals(self, room: int) -> tuple[int, ...]:
        """Reply tokens to check in the next pass, `room` at most."""
        assert self._snapshot is not None
        if self._wants_score and self._snapshot.at_pause:
            room = min(room, MAX_SCORED_PROPOSALS)
        return self.reply.propose(self.prompt_ids, self.turn)[:room]

    def stake(self, feed: Feed) -> Stake | None:
        """What speculation on `feed` is good for. Rows that may be moved behind a change are of use
        whatever comes (None)."""
        is_movable = self.config.suffix_policy is not SuffixPolicy.RECOMPUTE
        if is_movable and feed.first_index < len(self.prompt_ids):
            return None
        return Stake(self.prompt_ids, feed.first_index, feed.num_tokens)

    def advance(self, feed: Feed, outcome: Outcome, now_s: float) -> list[EngineEvent]:
        """The pass over `feed` is done."""
        assert self._snapshot is not None and self._layout is not None
        self.kv.written(feed.pieces)
        events: list[EngineEvent] = []
        if outcome.end_probability is not None and self._layout.score_index is not None:
            self._score = (self._layout.score_index, outcome.end_probability)
            events += self._read_score(self._snapshot)
        self.count_pass(feed)
        if feed.sample_from is None:
            return events
        before = len(self.reply.draft)
        num_right = self.reply.decide(feed.proposals, outcome.token_ids, outcome.margins, now_s)
        self.kv.truncate(len(self.prompt_ids) + before + num_right)
        if self.is_committed:
            return events + self._deliver(now_s)
        return events + self.reply.show(self._snapshot.revision)

    def count_pass(self, feed: Feed) -> None:
        """A pass over `feed` was run, to its end or until it was given up."""
        if feed.is_charged:
            self.reply.account.count_pass(feed.num_tokens, is_verify=bool(feed.proposals))

    # ---- endings

    def _deliver(self, now_s: float) -> list[EngineEvent]:
        self.is_over = self.reply.draft.finish is not None
        return self.reply.deliver(self.turn, now_s)

    def stop(self, now_s: float, error: str | None = None) -> list[EngineEvent]:
        """End the running reply, or stop drafting until the next snapshot. The rows stay."""
        self._is_resting = True
        if not self.is_running:
            return []
        self.is_over = True
        return self.reply.abandon(self.turn, now_s, error)

    def refuse(self, turn: TurnId, now_s: float, error: str) -> list[EngineEvent]:
        """Answer a commit that cannot be carried out."""
        self.turn, self.is_over, self.is_committed = turn, True, True
        self.reply.start_turn()
        return self.reply.abandon(turn, now_s, error)

    def forget(self, turn: TurnId, num_reply_tokens: int) -> None:
        """Drop the rows of reply tokens that were not heard, if that reply is the newest."""
        if self.is_over and turn == self.turn:
            self.kv.truncate(len(self.prompt_ids) + num_reply_tokens)

    def drop_rows(self) -> None:
        """Give all rows back; the next snapshot's are computed anew."""
        self.kv.clear()
        self._score = None


def _clipped(ranges: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    return [(start, min(stop, end)) for start, stop in ranges if start < end]
