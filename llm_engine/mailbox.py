"""The engine's letter box: any thread puts commands in, the engine's thread takes them out.

Checks what can be checked at once (revision, length, session), numbers the turns, and lets a newer
snapshot replace one that still waits: between two other commands of a session the box holds at most
one update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Condition

from llm_engine.errors import (
    EmptyPrompt,
    EngineUnavailable,
    PromptTooLong,
    StaleRevision,
    TooManySessions,
    UnknownSession,
)
from llm_engine.events import OnEvent, SessionConfig, SessionId, TurnId
from llm_engine.prompt import Snapshot


@dataclass(slots=True, eq=False)
class Open:
    session_id: SessionId
    config: SessionConfig
    on_event: OnEvent


@dataclass(slots=True, eq=False)
class Update:
    session_id: SessionId
    snapshot: Snapshot


@dataclass(slots=True, eq=False)
class Commit:
    session_id: SessionId
    snapshot: Snapshot
    turn: TurnId
    at_s: float


@dataclass(slots=True, eq=False)
class Cancel:
    session_id: SessionId


@dataclass(slots=True, eq=False)
class Truncate:
    session_id: SessionId
    turn: TurnId
    num_reply_tokens: int


@dataclass(slots=True, eq=False)
class Close:
    session_id: SessionId


Command = Open | Update | Commit | Cancel | Truncate | Close


@dataclass(frozen=True, slots=True)
class Stake:
    """What a speculative pass computes for one session: `num_tokens` tokens of this prompt and of
    its draft, from index `first_index` on."""

    prompt_ids: tuple[int, ...]
    first_index: int
    num_tokens: int

    def is_lost(self, newer: Snapshot) -> bool:
        """Most of it does not serve the newer prompt, which differs before it."""
        ids = newer.token_ids
        if ids == self.prompt_ids:
            return False
        pairs = enumerate(zip(ids, self.prompt_ids, strict=False))
        shorter = min(len(ids), len(self.prompt_ids))
        num_equal = next((index for index, (a, b) in pairs if a != b), shorter)
        return 2 * max(0, num_equal - self.first_index) < self.num_tokens


@dataclass(slots=True)
class _Face:
    """What the callers' side knows of a session."""

    newest: Snapshot | None = None
    num_turns: int = 0
    waiting: Update | None = None  # in the box, nothing of the session behind it


class Mailbox:
    """See the module's head. All methods are safe from any thread and none waits for the engine."""

    def __init__(self, max_sessions: int, max_prompt_tokens: int) -> None:
        self.max_sessions = max_sessions
        self.max_prompt_tokens = max_prompt_tokens
        self._changed = Condition()
        self._queue: deque[Command] = deque()
        self._faces: dict[SessionId, _Face] = {}
        self._num_opened = 0
        self._is_closed = False
        self._is_nudged = False
        self._holders: set[str] = set()
        self._held_replies: frozenset[SessionId] = frozenset()

    @property
    def num_sessions(self) -> int:
        return len(self._faces)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def open(self, config: SessionConfig, on_event: OnEvent) -> SessionId:
        """Raises TooManySessions, EngineUnavailable."""
        with self._changed:
            self._require_open()
            if len(self._faces) >= self.max_sessions:
                raise TooManySessions(self.max_sessions)
            self._num_opened += 1
            session_id = f"s{self._num_opened}"
            self._faces[session_id] = _Face()
            self._put(Open(session_id, config, on_event))
            return session_id

    def update(self, session_id: SessionId, snapshot: Snapshot) -> None:
        """Raises UnknownSession, StaleRevision, EmptyPrompt, PromptTooLong."""
        with self._changed:
            face = self._face(session_id)
            self._check(snapshot)
            if face.newest is not None and snapshot.revision <= face.newest.revision:
                raise StaleRevision(snapshot.revision, face.newest.revision)
            face.newest = snapshot
            if face.waiting is not None:
                face.waiting.snapshot = snapshot
                return
            face.waiting = Update(session_id, snapshot)
            self._put(face.waiting)

    def commit(self, session_id: SessionId, snapshot: Snapshot, at_s: float) -> TurnId:
        """Like `update`; the newest snapshot itself may be committed too."""
        with self._changed:
            face = self._face(session_id)
            self._check(snapshot)
            newest = face.newest
            if newest is not None and snapshot.revision <= newest.revision:
                is_newest = snapshot.revision == newest.revision
                if not (is_newest and snapshot.segments == newest.segments):
                    raise StaleRevision(snapshot.revision, newest.revision)
            face.newest = snapshot
            if face.waiting is not None:
                self._queue.remove(face.waiting)
            turn = face.num_turns
            face.num_turns += 1
            self._held_replies -= {session_id}
            self._put_last(face, Commit(session_id, snapshot, turn, at_s))
            return turn

    def cancel(self, session_id: SessionId) -> None:
        with self._changed:
            face = self._face(session_id)
            self._held_replies -= {session_id}
            self._put_last(face, Cancel(session_id))

    def truncate(self, session_id: SessionId, turn: TurnId, num_reply_tokens: int) -> None:
        with self._changed:
            face = self._face(session_id)
            self._put_last(face, Truncate(session_id, turn, max(0, num_reply_tokens)))

    def close_session(self, session_id: SessionId) -> None:
        """Idempotent."""
        with self._changed:
            self._held_replies -= {session_id}
            if self._faces.pop(session_id, None) is not None:
                self._put(Close(session_id))

    def hold(self, holder: str) -> None:
        """`holder` needs the processor: see `is_held`. Idempotent."""
        with self._changed:
            self._holders.add(holder)

    def release(self, holder: str) -> None:
        """Idempotent."""
        with self._changed:
            self._holders.discard(holder)
            self._nudge()

    @property
    def is_held(self) -> bool:
        """Somebody with more urgent work than speculation is at it."""
        return bool(self._holders)

    def hold_reply(self, session_id: SessionId) -> None:
        """Until `release_reply`, or the session's next commit, cancel or close. Idempotent; does
        nothing for a session that is closed."""
        with self._changed:
            if session_id in self._faces:
                self._held_replies |= {session_id}

    def release_reply(self, session_id: SessionId) -> None:
        """Idempotent."""
        with self._changed:
            if session_id in self._held_replies:
                self._held_replies -= {session_id}
                self._nudge()

    @property
    def held_replies(self) -> frozenset[SessionId]:
        """Sessions whose replies are not to be gone on with."""
        return self._held_replies

    def outweighs(self, stakes: Mapping[SessionId, Stake | None]) -> bool:
        """Something waits that is worth more than the speculation of these sessions: another one's
        commit, or, of the only one, a pause or a commit to which what is computed is of no use.
        None: of use whatever comes."""
        with self._changed:
            return any(_outweighs(command, stakes) for command in self._queue)

    def take(self) -> list[Command]:
        """Everything that waits, in the order it came."""
        with self._changed:
            self._is_nudged = False
            commands = list(self._queue)
            self._queue.clear()
            for command in commands:
                if isinstance(command, Update) and command.session_id in self._faces:
                    self._faces[command.session_id].waiting = None
            return commands

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until something waits in the box, a holder lets go, or the box is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._queue) or self._is_closed or self._is_nudged, timeout_s
            )

    def close(self) -> None:
        """No further sessions; wakes whoever waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _nudge(self) -> None:
        self._is_nudged = True
        self._changed.notify_all()

    def _require_open(self) -> None:
        if self._is_closed:
            raise EngineUnavailable(
                "the engine was stopped and takes no further sessions: make another one"
            )

    def _face(self, session_id: SessionId) -> _Face:
        face = self._faces.get(session_id)
        if face is None:
            raise UnknownSession(session_id)
        return face

    def _check(self, snapshot: Snapshot) -> None:
        num_tokens = snapshot.num_tokens
        if num_tokens == 0:
            raise EmptyPrompt(snapshot.revision)
        if num_tokens > self.max_prompt_tokens:
            raise PromptTooLong(num_tokens, self.max_prompt_tokens)

    def _put_last(self, face: _Face, command: Command) -> None:
        face.waiting = None
        self._put(command)

    def _put(self, command: Command) -> None:
        self._queue.append(command)
        self._changed.notify_all()


def _outweighs(command: Command, stakes: Mapping[SessionId, Stake | None]) -> bool:
    if not isinstance(command, Update | Commit):
        return False
    if command.session_id not in stakes:
        return isinstance(command, Commit)
    stake = stakes[command.session_id]
    is_urgent = isinstance(command, Commit) or command.snapshot.at_pause
    return is_urgent and len(stakes) == 1 and stake is not None and stake.is_lost(command.snapshot)
