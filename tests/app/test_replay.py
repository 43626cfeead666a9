from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from app.recordings import Recording, find_recordings
from app.replay import LAG_KEYS, Speculation, replay_virtual, settings_for, word_error_rate
from app.report import TURN_KEYS, turn_line
from app.runtime import Runtime
from app.virtual import Costs, VirtualClock
from llm_engine.events import SpeculationTrigger

Prepared = tuple[Runtime, VirtualClock]
COSTS = Costs(
    partial_ms=60,
    final_ms=60,
    turn_check_ms=40,
    prefill_token_ms=2,
    decode_pass_ms=12,
    tts_second_ms=15,
)

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def recording(bundled_clips: Path) -> Recording:
    (found,) = find_recordings([bundled_clips / "gasst_whattimeisit.riff"])
    return found


def test_the_three_modes_differ_in_time_but_not_in_words(
    virtual_runtime: Prepared, recording: Recording
) -> None:
    runtime, clock = virtual_runtime
    turns = {
        mode: replay_virtual(runtime, clock, recording, mode, COSTS).turns
        for mode in get_args(Speculation)
    }
    (on,), (off,), (pause,) = turns["on"], turns["off"], turns["pause"]
    assert on["transcript"] == off["transcript"] == pause["transcript"] != ""
    for other in (off, pause):
        same = on["reply"] == other["reply"]
        assert same or on["reply_tie_index"] is not None or other["reply_tie_index"] is not None
    assert on["eou_s"] == off["eou_s"] == pause["eou_s"]
    assert on["ready_lag_ms"] <= off["ready_lag_ms"]
    assert off["drafted_tokens"] == 0 and on["drafted_tokens"] > 0


def test_a_clip_replayed_twice_with_a_cost_table_gives_identical_json(
    virtual_runtime: Prepared, recording: Recording
) -> None:
    runtime, clock = virtual_runtime
    first, second = (replay_virtual(runtime, clock, recording, "on", COSTS) for _ in range(2))
    lines = [turn_line(turn) for turn in first.turns]
    assert lines == [turn_line(turn) for turn in second.turns]
    turn = json.loads(lines[0])
    assert list(turn)[: len(TURN_KEYS)] == TURN_KEYS
    assert turn["wer"] == 0.0 and turn["clip"] == recording.name


def test_free_computing_hides_what_it_cannot_measure(
    virtual_runtime: Prepared, recording: Recording
) -> None:
    runtime, clock = virtual_runtime
    (turn,) = replay_virtual(runtime, clock, recording, "on", Costs()).turns
    assert all(turn[key] is None for key in LAG_KEYS)
    assert turn["transcript"] and turn["reply"] and turn["accepted_tokens"] is not None


def test_the_baselines_reuse_no_part_of_a_draft_and_end_turns_by_the_same_evidence(
    virtual_runtime: Prepared,
) -> None:
    runtime, _ = virtual_runtime
    on, off, pause = (settings_for(runtime, mode) for mode in ("on", "off", "pause"))
    assert off.engine.trigger is SpeculationTrigger.OFF
    assert pause.engine.trigger is SpeculationTrigger.PAUSE
    assert on.engine.keep_drafts and not off.engine.keep_drafts and not pause.engine.keep_drafts
    assert on.engine.score_snapshots and off.engine.score_snapshots and pause.engine.score_snapshots


def test_word_error_rate_ignores_case_and_marks_and_needs_a_reference() -> None:
    clip = Recording(Path("x.wav"), reference="It's two p.m., isn't it?")
    assert word_error_rate(clip, "it is 2 pm isn't it") is not None
    assert word_error_rate(clip, "It's two p.m. isn't it") == 0.0
    assert word_error_rate(Recording(Path("x.wav")), "anything") is None


def test_a_clip_without_speech_has_no_turn(virtual_runtime: Prepared, tmp_path: Path) -> None:
    from asr.audio import write_wav

    runtime, clock = virtual_runtime
    write_wav(tmp_path / "silence.wav", np.zeros(16_000, np.float32), 16_000)
    call = replay_virtual(runtime, clock, Recording(tmp_path / "silence.wav"), "on", Costs())
    assert call.turns == ()
