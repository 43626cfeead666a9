from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from app import messages as m
from app.recordings import Recording
from app.replay import ReplayedCall
from app.report import (
    call_audio,
    snapshot_table,
    summary,
    table,
    turn_line,
    write_calls,
    write_report,
)
from app.virtual import Stamped
from asr.audio import decode_file, read_file


def turn(**changes: Any) -> dict[str, Any]:
    values = dict.fromkeys(
        [
            "endpoint_delay_ms",
            "ready_lag_ms",
            "response_delay_ms",
            "lead_time_ms",
            "ready_at_eou",
            "wer",
            "reply_tie_index",
            "cost",
        ]
    )
    values |= {"clip": "a.wav", "transcript": "hi", "reply": "hello"}
    values |= {"drafted_tokens": 3, "accepted_tokens": 2, "wasted_tokens": 1, "verify_passes": 1}
    return values | changes


def call(*turns: dict[str, Any], events: tuple[Stamped, ...] = ()) -> ReplayedCall:
    samples = np.full(16_000, 0.25, np.float32)
    return ReplayedCall(Recording(Path("a.wav")), turns, events, samples)


def test_a_summary_holds_quantiles_and_the_share_that_was_ready() -> None:
    calls = [
        call(turn(endpoint_delay_ms=100.0, ready_at_eou=True)),
        call(turn(endpoint_delay_ms=300.0, ready_at_eou=False, reply_tie_index=4)),
        call(),
    ]
    result = summary(calls)
    assert result["endpoint_delay_ms"] == {"p50": 200.0, "p90": 280.0}
    assert result["ready_at_eou_rate"] == 0.5
    assert (result["clips"], result["turns"], result["ties"]) == (3, 2, 1)
    assert result["clips_without_turn"] == ["a.wav"]
    assert result["wer"] is None


def test_what_each_snapshot_made_redo_is_a_row_of_its_own() -> None:
    works = [
        {"revision": 3, "prompt": 250, "kept": 60, "reused": 183, "redone": 7, "draft": 12},
        {"revision": 4, "prompt": 251, "kept": 67, "reused": 0, "redone": 184, "draft": 9},
    ]
    output = io.StringIO()
    grid = snapshot_table([call(turn(turn=0, snapshots=works))])
    Console(file=output, width=120).print(grid)
    rows = [line for line in output.getvalue().splitlines() if "a.wav" in line]
    assert [[cell.strip() for cell in row.strip("│").split("│")][2:] for row in rows] == [
        ["3", "250", "60", "183", "7", "12"],
        ["4", "251", "67", "0", "184", "9"],
    ]


def test_a_line_keeps_the_fixed_order_and_every_further_field() -> None:
    line = json.loads(turn_line(turn(num_passes=7)))
    assert list(line)[:4] == ["clip", "turn", "mode", "transcript"]
    assert line["num_passes"] == 7 and line["turn"] is None


def test_the_table_shows_clips_with_and_without_turns() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table([call(turn()), call()], "title"))
    text = console.export_text()
    assert "hello" in text and "(no turn)" in text and "2/3" in text


def test_the_call_as_heard_has_the_caller_left_and_the_reply_right_at_its_time() -> None:
    audio = m.ReplyAudio("r", "i", np.full(24_000, 0.5, np.float32), 24_000, "hello")
    heard = call_audio(call(events=(Stamped(1.5, audio), Stamped(1.6, audio))))
    assert heard.shape == (int(3.5 * 24_000), 2)
    assert abs(float(heard[12_000, 0]) - 0.25) < 0.01
    assert not heard[: int(1.5 * 24_000), 1].any()
    assert float(heard[-1, 1]) > 0.4  # the second piece follows the first without a gap


def test_one_call_goes_to_a_file_and_several_to_a_folder(tmp_path: Path) -> None:
    write_calls([call()], tmp_path / "one.wav")
    assert decode_file(tmp_path / "one.wav").sample_rate_hz == 24_000
    write_calls([call(), call()], tmp_path / "many")
    assert len(read_file(tmp_path / "many" / "a.wav")) == 16_000


def test_a_report_holds_turns_summary_and_a_plot(tmp_path: Path) -> None:
    write_report([call(turn(endpoint_delay_ms=1.0, response_delay_ms=2.0))], tmp_path / "r", "t")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["turns"] == 1
    assert (tmp_path / "r" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "r" / "turns.jsonl").read_text().splitlines()) == 1
