"""`python -m app bench PART`: a part's speed beside its ceiling and a peer; JSON on the last line."""

from __future__ import annotations

import argparse
import importlib
import json

PARTS = {
    "engine": "the incremental engine against full re-prefill, transformers and llama.cpp",
    "model": "decode and prefill against measured memory bandwidth",
    "asr": "streaming recognition and end of utterance against the plain baseline",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bench", help="measurements of single parts")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, about in PARTS.items():
        importlib.import_module(f"app.bench.{name}").add_arguments(
            parts.add_parser(name, help=about)
        )


def run(arguments: argparse.Namespace) -> int:
    figures = importlib.import_module(f"app.bench.{arguments.part}").run_command(arguments)
    print(json.dumps(figures))
    return 0
