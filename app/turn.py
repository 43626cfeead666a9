"""Whose turn it is: a pure state machine. Every (state, event) pair that can happen is listed once.

`Act`s tell the session what to do; the machine itself does nothing, knows no clock and no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class TurnState(Enum):
    IDLE = auto()  # nobody speaks
    LISTENING = auto()  # an utterance is open
    REPLYING = auto()  # a reply is being made or played
    OVERLAPPING = auto()  # both: an utterance is open during a reply, which goes on


class Act(Enum):
    COMMIT = auto()  # the utterance just ended is the caller's turn: reply to it
    QUEUE = auto()  # it is, but the running reply must end first
    DROP = auto()  # nothing intelligible was said
    INTERRUPT = auto()  # stop the running reply and forget what was not heard
    COMMIT_QUEUED = auto()  # reply to the oldest queued utterance


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    pass


@dataclass(frozen=True, slots=True)
class SpeechHeld:
    """The caller has been speaking for long enough that it is no blip."""

    may_interrupt: bool


@dataclass(frozen=True, slots=True)
class UtteranceOver:
    has_text: bool
    may_interrupt: bool


@dataclass(frozen=True, slots=True)
class ReplyBegan:
    """A reply that no utterance asked for: the client requested it or typed."""


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """Made and played, cancelled or failed."""

    num_queued: int


TurnEvent = SpeechBegan | SpeechHeld | UtteranceOver | ReplyBegan | ReplyOver


class ImpossibleTurn(AssertionError):
    """An event that cannot happen in this state: a mistake of ours."""


class TurnMachine:
    def __init__(self) -> None:
        self.state = TurnState.IDLE

    @property
    def is_listening(self) -> bool:
        return self.state in (TurnState.LISTENING, TurnState.OVERLAPPING)

    @property
    def is_replying(self) -> bool:
        return self.state in (TurnState.REPLYING, TurnState.OVERLAPPING)

    def handle(self, event: TurnEvent) -> tuple[Act, ...]:
        """Take one event; return what to do, in order."""
        match self.state, event:
            case TurnState.IDLE, SpeechBegan():
                return self._to(TurnState.LISTENING)
            case TurnState.IDLE, ReplyBegan():
                return self._to(TurnState.REPLYING)
            case TurnState.LISTENING, SpeechHeld():
                return ()
            case TurnState.LISTENING, UtteranceOver(has_text=True):
                return self._to(TurnState.REPLYING, Act.COMMIT)
            case TurnState.LISTENING, UtteranceOver(has_text=False):
                return self._to(TurnState.IDLE, Act.DROP)
            case TurnState.LISTENING, ReplyBegan():
                return self._to(TurnState.OVERLAPPING)
            case TurnState.REPLYING, SpeechBegan():
                return self._to(TurnState.OVERLAPPING)
            case TurnState.REPLYING, ReplyOver(num_queued=0):
                return self._to(TurnState.IDLE)
            case TurnState.REPLYING, ReplyOver():
                return self._to(TurnState.REPLYING, Act.COMMIT_QUEUED)
            case TurnState.OVERLAPPING, SpeechHeld(may_interrupt=True):
                return self._to(TurnState.LISTENING, Act.INTERRUPT)
            case TurnState.OVERLAPPING, SpeechHeld(may_interrupt=False):
                return ()
            case TurnState.OVERLAPPING, UtteranceOver(has_text=False):
                return self._to(TurnState.REPLYING, Act.DROP)
            case TurnState.OVERLAPPING, UtteranceOver(has_text=True, may_interrupt=True):
                return self._to(TurnState.REPLYING, Act.INTERRUPT, Act.COMMIT)
            case TurnState.OVERLAPPING, UtteranceOver(has_text=True, may_interrupt=False):
                return self._to(TurnState.REPLYING, Act.QUEUE)
            case TurnState.OVERLAPPING, ReplyOver(num_queued=0):
                return self._to(TurnState.LISTENING)
            case TurnState.OVERLAPPING, ReplyOver():
                return self._to(TurnState.OVERLAPPING, Act.COMMIT_QUEUED)
        raise ImpossibleTurn(f"{event} in state {self.state.name}")

    def _to(self, state: TurnState, *acts: Act) -> tuple[Act, ...]:
        self.state = state
        return acts
