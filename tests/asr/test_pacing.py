from __future__ import annotations

from asr.pacing import PartialPacing
from asr.settings import ListenerSettings

SETTINGS = ListenerSettings(partial_step_ms=300, max_partial_step_ms=600)
STEP, LONG_STEP = 4800, 9600  # samples
SHORT, LONG = 16_000, 100 * 16_000


def test_the_first_partial_is_due_a_step_after_speech_began() -> None:
    pacing = PartialPacing()
    pacing.restart(1000, SETTINGS)
    assert not pacing.is_due(1000 + STEP - 1, SETTINGS)
    assert pacing.is_due(1000 + STEP, SETTINGS)


def test_the_next_waits_for_the_answer_but_not_for_ever() -> None:
    pacing = PartialPacing()
    pacing.restart(0, SETTINGS)
    assert pacing.is_due(STEP, SETTINGS)
    pacing.sent(7, STEP, SHORT, SETTINGS)
    assert not pacing.is_due(2 * STEP, SETTINGS)
    assert pacing.is_due(STEP + LONG_STEP, SETTINGS)


def test_an_answer_makes_way_for_the_next() -> None:
    pacing = PartialPacing()
    pacing.restart(0, SETTINGS)
    assert pacing.is_due(STEP, SETTINGS)
    pacing.sent(7, STEP, SHORT, SETTINGS)
    pacing.answered(6)
    assert not pacing.is_due(2 * STEP, SETTINGS)
    pacing.answered(7)
    assert pacing.is_due(2 * STEP, SETTINGS)


def test_a_long_segment_stretches_the_step_up_to_the_longest() -> None:
    pacing = PartialPacing()
    pacing.restart(0, SETTINGS)
    pacing.sent(1, STEP, 6 * 16_000, SETTINGS)
    pacing.answered(1)
    assert not pacing.is_due(STEP + STEP, SETTINGS)
    assert pacing.is_due(STEP + STEP * 3 // 2, SETTINGS)
    pacing.sent(2, 0, LONG, SETTINGS)
    pacing.answered(2)
    assert pacing.is_due(LONG_STEP, SETTINGS)
