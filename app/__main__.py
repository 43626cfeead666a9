"""`python -m app COMMAND`: imports only the chosen command, prints typed errors as one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# Read by numpy's BLAS when it is first imported. Its matrices here are small: a pool of threads per
# library only fights over the cores (a mel spectrogram takes 5 ms with one thread, 27 ms with two).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

COMMANDS = {
    "serve": "the page and the WebSocket server",
    "replay": "recordings through the real pipeline, with figures per turn",
    "bench": "measurements of single parts",
    "models": "list and fetch models",
}
OUR_PACKAGES = {"app", "asr", "kernels", "llm_engine", "tts"}


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 1 failed as the command says, 2 wrong usage or a typed error."""
    parser = argparse.ArgumentParser(prog="python -m app", description="Forespeak")
    chosen = next((name for name in arguments[:1] if name in COMMANDS), None)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        if name == chosen:
            # a command's imports can take seconds, so only the chosen one is imported
            command = importlib.import_module(f"app.commands.{name}")
            command.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=about)
    parsed = parser.parse_args(arguments)
    try:
        return int(command.run(parsed))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in OUR_PACKAGES:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
