"""Random lives of sessions: edits, pauses, commits, cancels, truncations, in random order.

`play` drives an engine through one; `replay_commits` gives another engine the same commits and
nothing else. What both answer must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from llm_engine.engine import Engine
from llm_engine.prompt import Segment, Snapshot
from tests.llm_engine.engine_rig import Events, open_session, run

PREFIXES = ((1, 2, 3), tuple(range(60, 100)))


@dataclass(frozen=True)
class Answer:
    """One committed prompt and what came of it."""

    turn: int
    snapshot: Snapshot
    reply: tuple[int, ...]
    text: str
    reason: str
    tie_index: int | None = None


@dataclass
class Caller:
    """One session's side of a life: its prompt as it changes, and what it was answered."""

    random: Random
    token: Callable[[], int]
    session: str
    events: Events
    has_two_slots: bool
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    revision: int = 0
    slots: list[list[int]] = field(default_factory=lambda: [[], []])
    history: list[tuple[int, ...]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    num_refused: int = 0  # commits for which there were no rows

    def snapshot(self, at_pause: bool) -> Snapshot:
        self.revision += 1
        segments = [Segment("system", "prefix", self.prefix)]
        segments += [Segment(f"history.{i}", "history", h) for i, h in enumerate(self.history)]
        segments.append(Segment("slot", "slot", tuple(self.slots[0])))
        if self.has_two_slots:
            segments.append(Segment("middle", "suffix", (20, 21, 22)))
            segments.append(Segment("slot2", "slot", tuple(self.slots[1])))
        segments.append(Segment("suffix", "suffix", self.suffix))
        num_changes = self.revision // 3
        return Snapshot(self.revision, tuple(segments), at_pause, num_stable_changes=num_changes)

    def edit(self) -> None:
        """Append, delete, revise or insert a few tokens, mostly at the end as speech does."""
        slot = self.slots[self.random.randrange(2) if self.has_two_slots else 0]
        kind = self.random.choice(("append", "append", "append", "delete", "revise", "insert"))
        new = [self.token() for _ in range(self.random.randrange(1, 6))]
        place = self.random.randrange(len(slot) + 1)
        if kind == "append" or not slot:
            slot.extend(new)
        elif kind == "delete":
            del slot[place:]
        elif kind == "revise":
            slot[place : place + len(new)] = new
        else:
            slot[place:place] = new
        del slot[40:]

    def close_turn(self, snapshot: Snapshot, heard: tuple[int, ...]) -> None:
        """The exchange becomes history; now and then an old turn is dropped."""
        words = tuple(
            t for s in snapshot.segments if s.role in ("slot", "suffix") for t in s.token_ids
        )
        self.history.append((*words, *heard))
        if len(self.history) > 3 or self.random.random() < 0.1:
            del self.history[0]
        self.slots = [[], []]

    def start_over(self) -> None:
        """The prompt is too large for the rows there are: all of it is forgotten."""
        self.num_refused += 1
        self.history, self.slots = [], [[], []]


OnReply = Callable[[Engine, Caller], None]


def play(
    engine: Engine,
    seed: int,
    num_operations: int,
    on_reply: OnReply = lambda engine, caller: None,
    /,
    **settings: Any,
) -> list[Caller]:
    """A random life of two sessions on `engine`; every reply ends by itself or by cancel, or is
    refused because the rows are too few for it."""
    random = Random(seed)

    def token() -> int:
        return random.randrange(1, 250)

    has_two_slots = random.random() < 0.3
    prefix = random.choice(PREFIXES)
    suffix = tuple(token() for _ in range(random.choice((2, 4, 30))))
    callers = []
    for _ in range(2):
        session, events = open_session(engine, **settings)
        callers.append(Caller(random, token, session, events, has_two_slots, prefix, suffix))
    for _ in range(num_operations):
        _act(engine, random.choice(callers), random, on_reply)
        for _ in range(random.choice((0, 1, 2, 5, 100))):
            if engine.step() is None:
                break
        engine.check_integrity()
    for caller in callers:
        engine.close(caller.session)
    run(engine)
    return callers


def _act(engine: Engine, caller: Caller, random: Random, on_reply: OnReply) -> None:
    chance = random.random()
    if chance < 0.6:
        caller.edit()
        engine.update(caller.session, caller.snapshot(at_pause=random.random() < 0.3))
    elif chance < 0.9:
        if random.random() < 0.3:
            caller.edit()
        snapshot = caller.snapshot(at_pause=True)
        if random.random() < 0.3:  # said once more before it is committed
            engine.update(caller.session, snapshot)
        turn = engine.commit(caller.session, snapshot)
        steps = random.randrange(1, 8) if random.random() < 0.2 else None
        if steps is not None:
            for _ in range(steps):
                engine.step()
            engine.cancel(caller.session)
        while turn not in caller.events.done:
            assert engine.step() is not None, "the engine went to sleep over a committed reply"
        events, done = caller.events, caller.events.done[turn]
        if done.error is not None:
            assert "KV rows" in done.error, done.error
            caller.start_over()
            return
        reply = events.reply(turn)
        caller.answers.append(Answer(turn, snapshot, reply, events.text(turn), done.reason))
        on_reply(engine, caller)
        heard = reply
        if random.random() < 0.3:
            heard = reply[: random.randrange(len(reply) + 1)]
            engine.truncate(caller.session, turn, len(heard))
        caller.close_turn(snapshot, heard)
    else:
        engine.cancel(caller.session)


def replay_commits(engine: Engine, answers: list[Answer], /, **settings: Any) -> list[Answer]:
    """The same commits on a session of `engine` that is told nothing before them."""
    session, events = open_session(engine, **settings)
    replies = []
    for answer in answers:
        assert engine.commit(session, answer.snapshot) == answer.turn
        run(engine)
        done = events.done[answer.turn]
        reply, text = events.reply(answer.turn), events.text(answer.turn)
        tie = done.stats.tie_index
        replies.append(Answer(answer.turn, answer.snapshot, reply, text, done.reason, tie))
    engine.close(session)
    run(engine)
    return replies
