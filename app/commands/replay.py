"""`python -m app replay`: recordings in, one JSON object per turn and a summary out."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from app.calibrate import calibrate
from app.config import load_config
from app.errors import NoRecordingChosen, OutputFolderMissing
from app.live import LiveRuntime
from app.recordings import Recording, find_recordings, load
from app.replay import ReplayedCall, replay_live, replay_virtual
from app.report import (
    snapshot_table,
    summary,
    table,
    turn_line,
    write_calls,
    write_report,
)
from app.runtime import Runtime
from app.virtual import Costs, VirtualClock
from asr.errors import AudioError

CONFIG_OPTIONS = ("llm", "asr", "dtype", "device", "prompt", "seed", "temperature")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("replay", help="replay recordings with figures per turn")
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="file, folder, manifest"
    )
    parser.add_argument("--speculate", choices=("on", "off", "pause"), default="on")
    parser.add_argument("--clock", choices=("real", "virtual"), default="real")
    parser.add_argument(
        "--compute",
        default="measured",
        metavar="measured|free|FILE",
        help="cost of computing on the virtual clock",
    )
    parser.add_argument("--kind", action="append", help="only clips of this kind (repeatable)")
    parser.add_argument("--language", help="only clips in this language, e.g. en")
    parser.add_argument("--llm")
    parser.add_argument("--asr")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int8", "int4"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="of the language model")
    parser.add_argument("--prompt", metavar="FILE")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--wav", type=Path, metavar="OUT", help="the call as heard")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines here")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write figures and a plot here")
    parser.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="measure this machine's costs for --compute"
    )


def run(arguments: argparse.Namespace) -> int:
    recordings = _chosen(arguments)
    for path in (arguments.json, arguments.wav, arguments.calibrate):
        if path is not None and not path.absolute().parent.is_dir():
            raise OutputFolderMissing(path)
    if not recordings:
        return 1
    config = load_config(**{name: getattr(arguments, name) for name in CONFIG_OPTIONS})
    costs = _costs(arguments.compute)
    clock = VirtualClock()
    is_virtual = arguments.clock == "virtual" or arguments.calibrate is not None
    runtime = Runtime.load(config, clock) if is_virtual else Runtime.load(config)
    if arguments.calibrate is not None:
        calibrate(runtime, clock, recordings).save(arguments.calibrate)
        return 0
    if is_virtual:
        source = _virtual(runtime, clock, recordings, arguments.speculate, costs)
    else:
        source = _live(runtime, recordings, arguments.speculate)
    calls = _print_turns(source, arguments.json)
    title = f"speculation {arguments.speculate}, {arguments.clock} clock"
    if sys.stderr.isatty():
        Console(stderr=True).print(table(calls, title))
    if arguments.prompt is not None:
        Console(stderr=True).print(snapshot_table(calls))
    if arguments.wav is not None:
        write_calls(calls, arguments.wav)
    if arguments.report is not None:
        write_report(calls, arguments.report, title)
    return 0 if calls else 1


def _chosen(arguments: argparse.Namespace) -> list[Recording]:
    found = find_recordings(arguments.paths)
    chosen = [
        recording
        for recording in found
        if (not arguments.kind or recording.kind in arguments.kind)
        and (not arguments.language or recording.language == arguments.language)
    ]
    if not chosen:
        raise NoRecordingChosen(len(found))
    return [recording for recording in chosen if _is_readable(recording)]


def _is_readable(recording: Recording) -> bool:
    """A file that is no audio is reported, before the models are loaded, and the others go on."""
    try:
        load(recording)
    except AudioError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


def _costs(compute: str) -> Costs | None:
    if compute == "measured":
        return None
    return Costs() if compute == "free" else Costs.load(Path(compute))


def _virtual(
    runtime: Runtime,
    clock: VirtualClock,
    recordings: list[Recording],
    speculation: str,
    costs: Costs | None,
) -> Iterator[ReplayedCall]:
    for recording in recordings:
        yield replay_virtual(runtime, clock, recording, speculation, costs)  # type: ignore[arg-type]


def _live(
    runtime: Runtime, recordings: list[Recording], speculation: str
) -> Iterator[ReplayedCall]:
    with asyncio.Runner() as runner:

        async def start() -> LiveRuntime:
            live = LiveRuntime(runtime)
            await live.start()
            return live

        live = runner.run(start())
        try:
            for recording in recordings:
                yield runner.run(replay_live(live, recording, speculation))  # type: ignore[arg-type]
        finally:
            runner.run(live.stop())


def _print_turns(source: Iterator[ReplayedCall], json_path: Path | None) -> list[ReplayedCall]:
    """Print each turn as soon as its clip is done, then the summary; keep a copy in `json_path`."""
    calls: list[ReplayedCall] = []
    lines: list[str] = []
    for call in source:
        calls.append(call)
        for turn in call.turns:
            lines.append(turn_line(turn))
            print(lines[-1], flush=True)
    if calls:
        lines.append(json.dumps({"summary": summary(calls)}))
        print(lines[-1], flush=True)
    if json_path is not None:
        json_path.write_text("".join(line + "\n" for line in lines))
    return calls
