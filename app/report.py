"""What replay prints and writes: JSON lines, a summary, a table, the call as a sound file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.table import Table

from app import messages as m
from app.replay import ReplayedCall
from app.virtual import Stamped
from asr.audio import SAMPLE_RATE_HZ, resample, write_wav

matplotlib.use("Agg")
from matplotlib import pyplot

TURN_KEYS = [
    "clip",
    "turn",
    "mode",
    "transcript",
    "reply",
    "reply_tie_index",
    "speech_end_s",
    "eou_s",
    "endpoint_delay_ms",
    "ready_lag_ms",
    "ready_at_eou",
    "response_delay_ms",
    "ttft_ms",
    "itl_ms",
    "lead_time_ms",
    "drafted_tokens",
    "accepted_tokens",
    "wasted_tokens",
    "verify_passes",
    "cost",
    "wer",
]
SUMMED_KEYS = [
    "endpoint_delay_ms",
    "ready_lag_ms",
    "response_delay_ms",
    "ttft_ms",
    "itl_ms",
    "lead_time_ms",
    "drafted_tokens",
    "accepted_tokens",
    "wasted_tokens",
    "verify_passes",
    "cost",
    "wer",
]
WAV_RATE_HZ = 24_000


def turn_line(turn: dict[str, Any]) -> str:
    """One turn as JSON: the fixed keys first, in their order, then what else is known."""
    ordered = {key: turn.get(key) for key in TURN_KEYS}
    return json.dumps(ordered | turn, ensure_ascii=False)


def summary(calls: Sequence[ReplayedCall]) -> dict[str, Any]:
    """p50 and p90 of every figure over all turns, and the share of turns that were ready at EOU."""
    turns = [turn for call in calls for turn in call.turns]
    ready = [turn["ready_at_eou"] for turn in turns if turn["ready_at_eou"] is not None]
    return {
        "clips": len(calls),
        "turns": len(turns),
        "clips_without_turn": [call.recording.name for call in calls if not call.turns],
        "ready_at_eou_rate": round(sum(ready) / len(ready), 4) if ready else None,
        "ties": sum(turn["reply_tie_index"] is not None for turn in turns),
        "tokens_per_pass": _ratio(turns, "reply_tokens", "num_passes"),
        "commit_passes_per_token": _ratio(turns, "passes_after_commit", "tokens_after_commit"),
        **{key: _quantiles([turn.get(key) for turn in turns]) for key in SUMMED_KEYS},
    }


def _ratio(turns: Sequence[dict[str, Any]], over: str, under: str) -> float | None:
    """Of two counts' sums over all turns; None where nothing was counted."""
    counted = sum(turn.get(under) or 0 for turn in turns)
    return round(sum(turn.get(over) or 0 for turn in turns) / counted, 3) if counted else None


def _quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p90 = np.percentile(known, [50, 90])
    return {"p50": round(float(p50), 3), "p90": round(float(p90), 3)}


def table(calls: Sequence[ReplayedCall], title: str) -> Table:
    """The turns as people read them."""
    grid = Table(title=title, expand=False)
    for name, justify in (
        ("clip", "left"),
        ("heard", "left"),
        ("reply", "left"),
        ("EOU +ms", "right"),
        ("ready +ms", "right"),
        ("response ms", "right"),
        ("lead ms", "right"),
        ("kept/drafted", "right"),
    ):
        grid.add_column(name, justify=justify, overflow="ellipsis", no_wrap=True, max_width=36)  # type: ignore[arg-type]
    for call in calls:
        for turn in call.turns:
            grid.add_row(
                turn["clip"],
                turn["transcript"],
                turn["reply"],
                *(
                    _whole(turn[key])
                    for key in (
                        "endpoint_delay_ms",
                        "ready_lag_ms",
                        "response_delay_ms",
                        "lead_time_ms",
                    )
                ),
                f"{turn['accepted_tokens']}/{turn['drafted_tokens']}",
            )
        if not call.turns:
            grid.add_row(call.recording.name, "(no turn)", *[""] * 6)
    return grid


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def call_audio(call: ReplayedCall) -> np.ndarray:
    """The call as heard: [N, 2] float32 at 24 kHz, caller left, reply right without gaps."""
    caller = resample(call.samples, SAMPLE_RATE_HZ, WAV_RATE_HZ)
    reply = _reply_track(call.events)
    heard = np.zeros((max(len(caller), len(reply)), 2), np.float32)
    heard[: len(caller), 0] = caller
    heard[: len(reply), 1] = reply
    return heard


def _reply_track(events: Sequence[Stamped]) -> np.ndarray:
    track: list[np.ndarray] = []
    num_samples = 0
    for stamped in events:
        if not isinstance(stamped.event, m.ReplyAudio):
            continue
        audio = stamped.event
        samples = resample(audio.samples, audio.sample_rate_hz, WAV_RATE_HZ)
        gap = max(0, int(stamped.at_s * WAV_RATE_HZ) - num_samples)
        track += [np.zeros(gap, np.float32), samples]
        num_samples += gap + len(samples)
    return np.concatenate(track) if track else np.zeros(0, np.float32)


def snapshot_table(calls: Sequence[ReplayedCall]) -> Table:
    """What the engine had to redo for each snapshot of each turn, in tokens."""
    grid = Table(title="tokens per snapshot: of the prompt, and drafted ones to check")
    for name in ("clip", "turn", "snapshot", "prompt", "kept", "reused", "redone", "draft"):
        grid.add_column(name, justify="left" if name == "clip" else "right")
    for call in calls:
        for turn in call.turns:
            for work in turn["snapshots"]:
                grid.add_row(turn["clip"], str(turn["turn"]), *(str(n) for n in work.values()))
    return grid


def write_calls(calls: Sequence[ReplayedCall], out: Path) -> None:
    """One call to the file `out`; several to `out`/CLIP.wav."""
    if len(calls) == 1 and out.suffix.lower() == ".wav":
        write_wav(out, call_audio(calls[0]), WAV_RATE_HZ)
        return
    out.mkdir(parents=True, exist_ok=True)
    for call in calls:
        write_wav(out / f"{call.recording.path.stem}.wav", call_audio(call), WAV_RATE_HZ)


def write_report(calls: Sequence[ReplayedCall], folder: Path, title: str) -> None:
    """`turns.jsonl`, `summary.json` and `delays.png` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    turns = [turn for call in calls for turn in call.turns]
    (folder / "turns.jsonl").write_text("".join(turn_line(turn) + "\n" for turn in turns))
    (folder / "summary.json").write_text(json.dumps(summary(calls), indent=2) + "\n")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for key, label in (
        ("endpoint_delay_ms", "end of turn decided"),
        ("response_delay_ms", "first audio sent"),
    ):
        values = sorted(turn[key] for turn in turns if turn[key] is not None)
        if values:
            axes.step(
                values, np.arange(1, len(values) + 1) / len(values), where="post", label=label
            )
    axes.set(title=title, xlabel="ms after the end of speech", ylabel="share of turns", ylim=(0, 1))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(folder / "delays.png", dpi=150)
    pyplot.close(figure)
