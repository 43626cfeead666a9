"""Replies that wait for their own first words to be spoken."""

from __future__ import annotations

import pytest

from llm_engine.events import SamplingParams
from tests.llm_engine.engine_rig import greedy_twin, make_engine, open_session, prompt, run

WORDS = tuple(b"how late is it")
SHORT = SamplingParams(max_tokens=12)


def test_a_held_reply_waits_while_others_go_on_and_is_the_same_in_the_end() -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=SHORT)
    other, other_events = open_session(engine, sampling=SHORT)
    engine.commit(session, prompt(0, WORDS))
    engine.step()
    engine.hold_reply(session)
    run(engine)
    assert not events.done and len(events.reply(0)) == 1
    engine.commit(other, prompt(0, WORDS))
    run(engine)
    assert other_events.done and not events.done
    engine.release_reply(session)
    run(engine)
    assert list(events.reply(0)) == greedy_twin(prompt(0, WORDS).token_ids, 12)[0]


@pytest.mark.parametrize("ending", ["commit", "cancel", "close"])
def test_nothing_of_a_hold_outlives_its_reply(ending: str) -> None:
    engine = make_engine()
    session, events = open_session(engine, sampling=SHORT)
    engine.commit(session, prompt(0, WORDS))
    engine.step()
    engine.hold_reply(session)
    if ending == "cancel":
        engine.cancel(session)
    if ending == "close":
        engine.close(session)
        session, events = open_session(engine, sampling=SHORT)
        engine.hold_reply("s99")  # there is none such
    engine.commit(session, prompt(1, WORDS[:5]))
    run(engine)
    expected, _ = greedy_twin(prompt(1, WORDS[:5]).token_ids, 12)
    assert list(events.reply(max(events.done))) == expected
