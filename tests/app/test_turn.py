from __future__ import annotations

import pytest

from app.turn import (
    Act,
    ImpossibleTurn,
    ReplyBegan,
    ReplyOver,
    SpeechBegan,
    SpeechHeld,
    TurnEvent,
    TurnMachine,
    TurnState,
    UtteranceOver,
)

IDLE, LISTENING, REPLYING, OVERLAPPING = TurnState

ALLOWED = [
    (IDLE, SpeechBegan(), LISTENING, ()),
    (IDLE, ReplyBegan(), REPLYING, ()),
    (LISTENING, SpeechHeld(True), LISTENING, ()),
    (LISTENING, UtteranceOver(True, True), REPLYING, (Act.COMMIT,)),
    (LISTENING, UtteranceOver(True, False), REPLYING, (Act.COMMIT,)),
    (LISTENING, UtteranceOver(False, True), IDLE, (Act.DROP,)),
    (LISTENING, ReplyBegan(), OVERLAPPING, ()),
    (REPLYING, SpeechBegan(), OVERLAPPING, ()),
    (REPLYING, ReplyOver(0), IDLE, ()),
    (REPLYING, ReplyOver(2), REPLYING, (Act.COMMIT_QUEUED,)),
    (OVERLAPPING, SpeechHeld(True), LISTENING, (Act.INTERRUPT,)),
    (OVERLAPPING, SpeechHeld(False), OVERLAPPING, ()),
    (OVERLAPPING, UtteranceOver(False, True), REPLYING, (Act.DROP,)),
    (OVERLAPPING, UtteranceOver(True, True), REPLYING, (Act.INTERRUPT, Act.COMMIT)),
    (OVERLAPPING, UtteranceOver(True, False), REPLYING, (Act.QUEUE,)),
    (OVERLAPPING, ReplyOver(0), LISTENING, ()),
    (OVERLAPPING, ReplyOver(1), OVERLAPPING, (Act.COMMIT_QUEUED,)),
]

IMPOSSIBLE = [
    (IDLE, SpeechHeld(True)),
    (IDLE, UtteranceOver(True, True)),
    (IDLE, ReplyOver(0)),
    (LISTENING, SpeechBegan()),
    (LISTENING, ReplyOver(0)),
    (REPLYING, SpeechHeld(True)),
    (REPLYING, UtteranceOver(True, True)),
    (REPLYING, ReplyBegan()),
    (OVERLAPPING, SpeechBegan()),
    (OVERLAPPING, ReplyBegan()),
]


def machine_in(state: TurnState) -> TurnMachine:
    machine = TurnMachine()
    machine.state = state
    return machine


@pytest.mark.parametrize(("state", "event", "after", "acts"), ALLOWED)
def test_every_possible_pair_leads_where_the_table_says(
    state: TurnState, event: TurnEvent, after: TurnState, acts: tuple[Act, ...]
) -> None:
    machine = machine_in(state)
    assert machine.handle(event) == acts
    assert machine.state is after


@pytest.mark.parametrize(("state", "event"), IMPOSSIBLE)
def test_an_impossible_pair_is_a_mistake_and_changes_nothing(
    state: TurnState, event: TurnEvent
) -> None:
    machine = machine_in(state)
    with pytest.raises(ImpossibleTurn, match=state.name):
        machine.handle(event)
    assert machine.state is state


def test_all_pairs_of_state_and_event_are_listed() -> None:
    listed = {(state, type(event)) for state, event, *_ in [*ALLOWED, *IMPOSSIBLE]}
    kinds = [SpeechBegan, SpeechHeld, UtteranceOver, ReplyBegan, ReplyOver]
    assert listed == {(state, kind) for state in TurnState for kind in kinds}
