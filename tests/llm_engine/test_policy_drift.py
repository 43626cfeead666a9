"""The probe compares policies on the very rows that the engine's accounting gives."""

from __future__ import annotations

from llm_engine.events import SuffixPolicy
from llm_engine.layout import Layout
from llm_engine.policy_drift import PolicyProbe
from tests.llm_engine.engine_rig import greedy_twin, prompt, tiny_model

SUFFIX = tuple(range(30, 70))


def layout(slot: tuple[int, ...]) -> Layout:
    return Layout.of(prompt(0, slot, suffix=SUFFIX), lambda token: False)


def test_exact_recompute_is_the_measure_and_the_others_are_near_it_but_not_equal() -> None:
    drifts = PolicyProbe(tiny_model()).compare(layout((5, 6, 7)), layout((5, 6, 7, 8)), 8)
    exact, rotate, padded = drifts
    assert exact.policy is SuffixPolicy.RECOMPUTE and exact.is_equal_reply
    assert exact.divergence == 0 and exact.num_agreeing == exact.num_tokens == 8
    for drift in (rotate, padded):
        assert 0 < drift.divergence < 5
        assert 0 <= drift.num_survived <= 8


def test_an_edit_that_changes_nothing_leaves_rotate_where_it_was() -> None:
    same = layout((5, 6, 7))
    _, rotate, padded = PolicyProbe(tiny_model()).compare(same, same, 8)
    assert rotate.is_equal_reply and abs(rotate.divergence) < 1e-6
    assert padded.divergence > 0  # its positions have a gap even so


def test_the_measure_itself_is_the_twins_reply() -> None:
    probe = PolicyProbe(tiny_model())
    after = layout((5, 6, 7, 8))
    kv, _, _ = probe._edited(layout((5, 6, 7)), after, SuffixPolicy.RECOMPUTE)
    reply = probe._greedy(kv, after, 6)
    expected, _ = greedy_twin(after.token_ids, 6)
    assert reply[: len(expected)] == expected
