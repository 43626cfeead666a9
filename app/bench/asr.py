"""`bench asr PATH`: streaming recognition and end of utterance beside the plain baseline.

Every clip is streamed through a listener on audio time, decodes costing nothing there, while the
CPU time they take is added up. The baseline is what is usually done: the full 30 s window re-
decoded every 300 ms, LocalAgreement-2, 500 ms of silence. Both run on the same clips in the same
run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.arguments import count
from app.bench.asr_figures import figures_of, word_error_rate
from app.bench.asr_load import streams_realtime
from app.bench.asr_stream import Observed, stream, timed
from app.model_store import resolve_asr, resolve_smart_turn
from app.recordings import Recording, find_recordings
from asr.events import DecodeRequest
from asr.settings import ListenerSettings
from asr.smart_turn import SmartTurn
from asr.whisper import Recogniser

KINDS = ("question", "command", "dictation")
OURS = ListenerSettings(word_times=True)
BASELINE = replace(OURS, turn_detection="server_vad", silence_ms=500)
BASELINE_AGREEMENT = 2  # hypotheses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="clips, or a manifest")
    parser.add_argument("--asr", default=None, help="recogniser: an id, a path, a hub id")
    parser.add_argument("--limit", type=count, default=None, help="only the first N clips")
    parser.add_argument("--no-baseline", action="store_true", help="leave the slow baseline out")
    parser.add_argument("--no-load", action="store_true", help="leave the many-streams test out")


def run_command(arguments: argparse.Namespace) -> dict[str, Any]:
    return run(
        arguments.paths,
        asr=arguments.asr,
        limit=arguments.limit,
        with_baseline=not arguments.no_baseline,
        with_load=not arguments.no_load,
    )


def run(
    paths: Sequence[Path],
    *,
    asr: str | None = None,
    limit: int | None = None,
    with_baseline: bool = True,
    with_load: bool = True,
) -> dict[str, Any]:
    """All figures; docs/asr.md defines each. Raises what finding clips and models raises."""
    clips = [clip for clip in find_recordings(paths) if _counts(clip)][:limit]
    smart_turn = SmartTurn(resolve_smart_turn(None))
    path = resolve_asr(asr)
    grafted, full = Recogniser(path), Recogniser(path, use_graft=False)
    ours: list[Observed] = []
    baseline: list[Observed] = []
    for number, clip in enumerate(clips, 1):
        sys.stderr.write(f"\r{number}/{len(clips)} {clip.name:50.50}")
        ours.append(stream(clip, grafted, smart_turn, OURS))
        if with_baseline:
            baseline.append(stream(clip, full, None, BASELINE))
    sys.stderr.write("\n")
    figures: dict[str, Any] = dict(figures_of(ours))
    figures.update(_full_window(ours, full))
    if with_load:
        figures["streams_realtime"] = streams_realtime(grafted, smart_turn)
    if with_baseline:
        figures["baseline"] = figures_of(baseline, committed_after=BASELINE_AGREEMENT)
    return {"clips": len(clips), "model": str(asr or "default"), **figures}


def _counts(clip: Recording) -> bool:
    """English, one speaker, known words: what word error rates can be told of."""
    return clip.language == "en" and clip.kind in KINDS and clip.reference is not None


def _full_window(observed: Sequence[Observed], full: Recogniser) -> dict[str, float]:
    """The same utterances' audio in full windows: error rate, and our finals' share of its CPU
    time.
    """
    texts, cpu_s = [], 0.0
    for clip in observed:
        parts = []
        for samples in clip.final_samples:
            request = DecodeRequest(0, 0, samples, 0.0, "pause")
            (result,), seconds = timed(partial(full.decode, [request]))
            parts.append(result.text)
            cpu_s += seconds
        texts.append(" ".join(parts))
    finals_cpu_s = sum(clip.final_cpu_s for clip in observed)
    return {
        "wer_full_window": word_error_rate(observed, texts),
        "final_cpu_share": round(finals_cpu_s / cpu_s, 3),
    }
