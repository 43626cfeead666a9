"""`bench modes`: speculation on, off and pause on the virtual clock, as models grow slower.

The same recordings, transcripts and endpointing for all; the language model's costs of a calibrated
table are multiplied, which is what larger models and busier machines feel like.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.bench.memory import RememberingDecoder, RememberingSynthesizer
from app.config import AppConfig
from app.recordings import Recording, find_recordings
from app.replay import ReplayedCall, Speculation, replay_virtual
from app.runtime import Runtime
from app.virtual import Costs, VirtualClock
from llm_engine.events import SuffixPolicy

MODES: tuple[tuple[str, Speculation, SuffixPolicy], ...] = (
    ("off", "off", SuffixPolicy.RECOMPUTE),
    ("pause", "pause", SuffixPolicy.RECOMPUTE),
    ("on", "on", SuffixPolicy.RECOMPUTE),
    ("on, rotate", "on", SuffixPolicy.ROTATE),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--compute", type=Path, required=True, help="table of `replay --calibrate`")
    parser.add_argument("--scale", type=float, nargs="+", default=[1, 3, 10], help="LLM cost times")
    parser.add_argument("--prompts", nargs="+", default=["assistant", "museum"])
    parser.add_argument("--kind", nargs="+", default=["question", "command"])
    parser.add_argument("--language", default="en")
    parser.add_argument("--dtype", default="auto")


def run_command(arguments: argparse.Namespace) -> dict[str, Any]:
    recordings = [
        recording
        for recording in find_recordings(arguments.paths)
        if recording.kind in arguments.kind and recording.language == arguments.language
    ]
    table = Costs.load(arguments.compute)
    rows: list[dict[str, Any]] = []
    for prompt in arguments.prompts:
        clock = VirtualClock()
        runtime = Runtime.load(AppConfig(dtype=arguments.dtype, prompt=prompt), clock)
        runtime = replace(
            runtime,
            recogniser=RememberingDecoder(runtime.recogniser),
            synthesizer=RememberingSynthesizer(runtime.synthesizer),
        )
        for scale in arguments.scale:
            costs = replace(
                table,
                prefill_token_ms=table.prefill_token_ms * scale,
                decode_pass_ms=table.decode_pass_ms * scale,
            )
            rows += _rows(runtime, clock, recordings, costs, {"prompt": prompt, "scale": scale})
    Console(stderr=True).print(_table(rows))
    return {"clips": len(recordings), "costs": str(arguments.compute), "rows": rows}


def _rows(
    runtime: Runtime,
    clock: VirtualClock,
    recordings: Sequence[Recording],
    costs: Costs,
    labels: dict[str, Any],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    has_suffix = bool(runtime.prompt.after)
    replies: dict[str, list[str]] = {}
    for name, speculation, policy in MODES:
        if policy is not SuffixPolicy.RECOMPUTE and not has_suffix:
            continue  # nothing follows the caller's words that could be reused
        calls = [
            replay_virtual(runtime, clock, recording, speculation, costs, policy)
            for recording in recordings
        ]
        replies[name] = [turn["reply"] for call in calls for turn in call.turns]
        rows.append({**labels, "mode": name, **_figures(calls)})
        rows[-1]["replies_unlike_off"] = sum(
            mine != plain for mine, plain in zip(replies[name], replies["off"], strict=True)
        )
    return rows


def _figures(calls: Sequence[ReplayedCall]) -> dict[str, Any]:
    turns = [turn for call in calls for turn in call.turns]
    lags = [turn["ready_lag_ms"] for turn in turns if turn["ready_lag_ms"] is not None]
    responses = [
        turn["response_delay_ms"] for turn in turns if turn["response_delay_ms"] is not None
    ]
    return {
        "turns": len(turns),
        "ready_lag_p50_ms": round(float(np.percentile(lags, 50)), 1),
        "ready_lag_p90_ms": round(float(np.percentile(lags, 90)), 1),
        "response_p50_ms": round(float(np.percentile(responses, 50)), 1),
        "response_p90_ms": round(float(np.percentile(responses, 90)), 1),
        "ready_at_eou": round(
            float(
                np.mean(
                    [turn["ready_at_eou"] for turn in turns if turn["ready_at_eou"] is not None]
                )
            ),
            3,
        ),
        "computed_tokens": sum(turn["computed_tokens"] for turn in turns),
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    grid = Table(title="ready lag and response delay, ms")
    for name in ("prompt", "LLM ×", "mode", "lag p50", "lag p90", "response p50", "ready at EOU"):
        grid.add_column(name)
    for row in rows:
        grid.add_row(
            row["prompt"],
            f"{row['scale']:g}",
            row["mode"],
            f"{row['ready_lag_p50_ms']:.0f}",
            f"{row['ready_lag_p90_ms']:.0f}",
            f"{row['response_p50_ms']:.0f}",
            f"{row['ready_at_eou']:.0%}",
        )
    return grid
