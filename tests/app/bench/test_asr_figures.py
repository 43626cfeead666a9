from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.asr_figures import figures_of, word_error_rate
from app.bench.asr_stream import Observed
from app.recordings import Recording
from asr.events import Transcript, UtteranceEnded, Word


def transcript(revision: int, text: str, end_s: float, *, stable: int = 0, final: bool = False):
    words = text.split()
    placed = tuple(Word(w, 0.5 * i, 0.5 * i + 0.4) for i, w in enumerate(words)) if final else ()
    return Transcript(
        utterance=0,
        revision=revision,
        stable=" ".join(words[:stable]),
        tentative=" ".join(words[stable:]),
        text=text,
        prompt_text=text,
        at_pause=final,
        end_s=end_s,
        words=placed,
    )


@pytest.fixture
def observed() -> Observed:
    """Two words that end at 0.4 and 0.9 s; the second was first heard wrong."""
    clip = Recording(Path("clip.wav"), "question", "en", "two tickets")
    told = [
        transcript(0, "two", 0.5),
        transcript(1, "two thickets", 0.8, stable=2),
        transcript(2, "two tickets", 1.1, stable=1),
        transcript(3, "two tickets", 1.5, stable=1, final=True),
    ]
    return Observed(
        clip,
        duration_s=2.0,
        speech_s=1.0,
        speech_end_s=1.4,
        transcripts=told,
        ends=[UtteranceEnded(0, 1.6, 1.4, told[-1], "sure")],
        partial_cpu_s=0.2,
        pause_decode_s={1.5: 0.05},
    )


def test_words_count_from_when_they_were_first_right(observed: Observed) -> None:
    figures = figures_of([observed])
    assert figures["word_delay_p50_ms"] == 150  # 0.1 and 0.2 s
    assert figures["words_soon_share"] == 1.0


def test_revised_words_are_counted_place_by_place(observed: Observed) -> None:
    figures = figures_of([observed])
    assert figures["revised_share"] == round(1 / 3, 3)  # of two, thickets, tickets
    assert figures["stable_wrong_share"] == 0.5  # of two, thickets


def test_committing_after_two_agreeing_hypotheses_is_the_baselines_rule(observed: Observed) -> None:
    assert figures_of([observed], committed_after=2)["stable_wrong_share"] == 0.0


def test_the_end_is_measured_from_the_end_of_speech(observed: Observed) -> None:
    figures = figures_of([observed])
    assert figures["eou_delay_p50_ms"] == figures["eou_delay_mean_ms"] == 200
    assert figures["cut_off_rate"] == 0.0


def test_a_slow_pause_decode_makes_the_text_late_unless_a_partial_said_it(
    observed: Observed,
) -> None:
    observed.pause_decode_s[1.5] = 1.0
    assert figures_of([observed])["final_equal_at_pause"] == 1.0
    del observed.transcripts[2]
    assert figures_of([observed])["final_equal_at_pause"] == 0.0


def test_cpu_time_is_told_per_second_of_speech(observed: Observed) -> None:
    assert figures_of([observed])["cpu_s_per_audio_s"] == pytest.approx(0.2)


def test_word_error_rates_ignore_spelling_of_numbers(observed: Observed) -> None:
    assert word_error_rate([observed], ["2 tickets"]) == 0.0
    assert word_error_rate([observed], ["two thickets"]) == 0.5
