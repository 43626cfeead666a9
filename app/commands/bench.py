"""`python -m app bench PART`: a part's speed beside its ceiling and a peer; JSON last."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

PARTS = {
    "engine": "the incremental engine against full re-prefill, transformers and llama.cpp",
    "model": "decode and prefill against measured memory bandwidth",
    "modes": "speculation on, off and pause on the virtual clock, as models grow slower",
    "asr": "streaming recognition and end of utterance against the plain baseline",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bench", help="measurements of single parts")
    chosen = next((name for name in sys.argv if name in PARTS), None)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, about in PARTS.items():
        part = parts.add_parser(name, help=about)
        if name == chosen:  # a part's imports can take seconds
            importlib.import_module(f"app.bench.{name}").add_arguments(part)


def run(arguments: argparse.Namespace) -> int:
    figures = importlib.import_module(f"app.bench.{arguments.part}").run_command(arguments)
    print(json.dumps(figures))
    return 0
