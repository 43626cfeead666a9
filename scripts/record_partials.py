"""Record the partial transcripts of clips, as `bench engine` feeds them to the engine.

    .venv/bin/python scripts/record_partials.py COSTS.json app/bench/partials.json PATH...

Virtual clock, the machine's cost table, default models. Per turn: what the caller had said by the
transcripts in order, and the final one. JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app import messages as m
from app.config import AppConfig
from app.recordings import find_recordings
from app.replay import ReplayedCall, replay_virtual
from app.runtime import Runtime
from app.virtual import Costs, VirtualClock


def turns_of(call: ReplayedCall) -> list[dict[str, object]]:
    turns: list[dict[str, object]] = []
    partials: list[str] = []
    for stamped in call.events:
        match stamped.event:
            case m.TranscriptChanged(stable=stable, tentative=tentative):
                text = " ".join(part for part in (stable.strip(), tentative.strip()) if part)
                if text and partials[-1:] != [text]:
                    partials.append(text)
            case m.TranscriptFinal(text=text) if text:
                turns.append({"clip": call.recording.name, "partials": partials, "final": text})
                partials = []
    return turns


def main() -> None:
    costs, target, *paths = map(Path, sys.argv[1:])
    clock = VirtualClock()
    runtime = Runtime.load(AppConfig(), clock)
    turns = [
        turn
        for recording in find_recordings(paths)
        if recording.kind in ("question", "command") and recording.language == "en"
        for turn in turns_of(replay_virtual(runtime, clock, recording, "on", Costs.load(costs)))
    ]
    target.write_text(json.dumps(turns, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(turns)} turns", file=sys.stderr)


if __name__ == "__main__":
    main()
