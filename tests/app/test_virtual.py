from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app import messages as m
from app.errors import CostTableInvalid
from app.recordings import frames_with_silence
from app.replay import settings_for
from app.runtime import Runtime
from app.virtual import Costs, VirtualCall, VirtualClock
from asr.audio import read_file
from llm_engine.engine import StepReport

Prepared = tuple[Runtime, VirtualClock]


def step(num_passes: int, num_tokens: int, *, is_charged: bool = True) -> StepReport:
    return StepReport(0, 0, num_tokens, num_passes, False, 0.0, is_charged)


def test_a_step_costs_its_passes_and_every_token_beyond_the_first() -> None:
    costs = Costs(decode_pass_ms=10, prefill_token_ms=2)
    assert costs.of_step(step(1, 1)) == pytest.approx(0.010)
    assert costs.of_step(step(1, 40)) == pytest.approx(0.010 + 39 * 0.002)
    assert costs.of_step(step(0, 0)) == 0.0


def test_a_table_survives_being_written_and_read(tmp_path: Path) -> None:
    costs = Costs(partial_ms=50, final_ms=60.5, tts_second_ms=9)
    costs.save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == costs


@pytest.mark.parametrize("text", ["", "[]", '{"partial_ms": "much"}', '{"unknown_ms": 1}'])
def test_a_table_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    table = tmp_path / "costs.json"
    table.write_text(text)
    with pytest.raises(CostTableInvalid, match="costs.json"):
        Costs.load(table)


@pytest.mark.models
def test_time_passes_only_by_audio_and_by_costs(
    virtual_runtime: Prepared, bundled_clips: Path
) -> None:
    runtime, clock = virtual_runtime
    clock.now_s = 0.0
    costs = Costs(
        partial_ms=40, final_ms=50, decode_pass_ms=20, prefill_token_ms=2, tts_second_ms=10
    )
    call = VirtualCall(runtime, clock, settings_for(runtime, "off"), costs)
    samples = read_file(bundled_clips / "gasst_whattimeisit.riff")
    call.run(frames_with_silence(samples), lambda events: False)
    call.close()
    times = [stamped.at_s for stamped in call.events]
    assert times == sorted(times)
    eou_s = next(s.at_s for s in call.events if isinstance(s.event, m.UserSpeechStopped))
    audio_s = next(s.at_s for s in call.events if isinstance(s.event, m.ReplyAudio))
    words = next(s.event.text for s in call.events if isinstance(s.event, m.TranscriptFinal))
    assert "time" in words.lower()
    # nothing was computed ahead: a prompt of about 40 tokens and a sentence lie between
    assert audio_s - eou_s > 0.020 + 30 * 0.002 + 3 * 0.020


@pytest.mark.models
def test_a_silent_call_has_no_events(virtual_runtime: Prepared) -> None:
    runtime, clock = virtual_runtime
    clock.now_s = 0.0
    call = VirtualCall(runtime, clock, settings_for(runtime, "on"), Costs())
    call.run(iter([np.zeros(320, np.float32)] * 100), lambda events: False)
    call.close()
    assert call.events == []
