from __future__ import annotations

import pytest

from asr.end_model import Evidence
from asr.endpointing import (
    HARD_BOUND_S,
    SILENCE_RULES,
    TELEPHONE_THRESHOLDS,
    SpeechChange,
    SpeechSegmenter,
    SpeechState,
    VadThresholds,
    required_silence,
)

W = 512


def changes(probabilities: list[float], thresholds: VadThresholds | None = None):
    segmenter = SpeechSegmenter(thresholds or VadThresholds())
    found = []
    for index, probability in enumerate(probabilities):
        change = segmenter.push(probability, (index + 1) * W)
        if change is not None:
            found.append((index, change))
    return segmenter, found


def test_three_speech_windows_start_an_utterance_at_the_first() -> None:
    segmenter, found = changes([0.1, 0.6, 0.2, 0.7, 0.8])
    assert found == [(4, SpeechChange.STARTED)]
    assert segmenter.start == 1 * W


def test_scattered_clicks_do_not_start_one() -> None:
    _, found = changes(([0.9] + [0.0] * 9) * 6)
    assert found == []


def test_two_low_windows_are_a_soft_pause_that_began_with_the_first() -> None:
    segmenter, found = changes([0.9] * 5 + [0.3, 0.2])
    assert found[-1] == (6, SpeechChange.PAUSED)
    assert segmenter.pause_start == 5 * W
    assert segmenter.speech_end == 5 * W


def test_a_score_between_the_thresholds_is_not_yet_a_pause() -> None:
    _, found = changes([0.9] * 5 + [0.4] * 6)
    assert [change for _, change in found] == [SpeechChange.STARTED]


def test_noise_between_the_thresholds_becomes_a_pause_in_the_end() -> None:
    _, found = changes([0.9] * 5 + [0.4] * 30)
    assert [change for _, change in found] == [SpeechChange.STARTED, SpeechChange.PAUSED]


def test_speech_resumes_at_the_on_threshold_only() -> None:
    segmenter, found = changes([0.9] * 5 + [0.1] * 3 + [0.45] * 3)
    assert found[-1][1] is SpeechChange.PAUSED
    assert segmenter.push(0.5, 12 * W) is SpeechChange.RESUMED


def test_after_the_end_new_speech_starts_afresh() -> None:
    segmenter, _ = changes([0.9] * 5 + [0.1] * 3)
    segmenter.end()
    assert segmenter.state is SpeechState.IDLE
    assert segmenter.push(0.9, 9 * W) is None


def test_the_telephone_thresholds_ride_out_a_weaker_voice() -> None:
    weak = [0.9] * 5 + [0.3] * 4
    assert changes(weak)[1][-1][1] is SpeechChange.PAUSED
    assert changes(weak, TELEPHONE_THRESHOLDS)[1][-1][1] is SpeechChange.STARTED


SURE = Evidence("What time is it?", 0.99, 0.99)
UNSURE = Evidence("I would like the", 0.01, 0.0001)


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_the_surer_the_shorter_and_never_beyond_the_hard_bound(eagerness) -> None:
    sure_s, _ = required_silence(SURE, eagerness)
    unsure_s, _ = required_silence(UNSURE, eagerness)
    assert sure_s < unsure_s <= HARD_BOUND_S + 0.01


def test_a_rule_has_rising_silences_for_falling_probabilities() -> None:
    for rule in SILENCE_RULES.values():
        limits = [least for least, _, _ in rule.steps]
        silences_s = [silence_s for _, silence_s, _ in rule.steps]
        assert limits == sorted(limits, reverse=True)
        assert limits[-1] == 0.0
        assert silences_s == sorted(silences_s)
        assert rule.shortest_s == silences_s[0]


def test_a_one_word_answer_ends_at_once_whatever_it_sounds_like() -> None:
    silence_s, reason = required_silence(Evidence("Yes.", 0.05, 0.001), "medium")
    assert (silence_s, reason) == (SILENCE_RULES["medium"].shortest_s, "answer")


def test_a_greeting_waits_for_the_matter_even_where_it_sounds_complete() -> None:
    silence_s, reason = required_silence(Evidence("Hello?", 0.99, 0.99), "medium")
    assert reason == "greeting"
    assert silence_s > 0.9


def test_without_any_evidence_the_utterance_still_ends() -> None:
    silence_s, _ = required_silence(Evidence(), "medium")
    assert silence_s <= HARD_BOUND_S
