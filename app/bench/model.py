"""`bench model`: milliseconds of a model's passes, beside llama.cpp's on the same file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, cast

from app.bench.arguments import count
from app.model_store import resolve_llm
from llm_engine.model_speed import CONTEXT_TOKENS, PREFILL_TOKENS, VERIFY_TOKENS, measure_model
from llm_engine.weights import WeightDtype

PEER_PACKAGE = "llama_cpp"  # never a dependency: measured where somebody installed it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llm", default=None, help="model: an id, a path, a hub id")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, int8 or int4")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--repeats", type=count, default=30)


def run_command(arguments: argparse.Namespace) -> dict[str, Any]:
    return run(
        resolve_llm(arguments.llm),
        dtype=arguments.dtype,
        num_threads=arguments.threads,
        repeats=arguments.repeats,
    )


def run(
    path: Path, *, dtype: str = "auto", num_threads: int = 2, repeats: int = 30
) -> dict[str, Any]:
    """Figures of one model; those of llama.cpp only where it is installed and the file is GGUF.

    Raises ModelError when the model cannot be loaded.
    """
    speed = measure_model(path, cast(WeightDtype, dtype), num_threads, repeats)
    figures: dict[str, Any] = {
        "model": path.name,
        "dtype": dtype,
        "num_threads": num_threads,
        "decode_ms_per_token": round(speed.decode_ms, 2),
        f"prefill_{PREFILL_TOKENS}_ms": round(speed.prefill_ms, 1),
        f"verify{VERIFY_TOKENS}_over_1": round(speed.verify_ms / speed.decode_ms, 3),
        "ceiling_decode_ms": round(speed.weights_read_ms, 2),
        "read_gb_per_s": round(speed.read_gb_per_s, 1),
        "weight_mb": round(speed.weight_bytes / 1e6, 1),
        "load_ms": round(speed.load_ms),
        "first_pass_ms": round(speed.first_pass_ms),
    }
    if path.suffix == ".gguf" and find_spec(PEER_PACKAGE) is not None:
        figures |= _peer(path, num_threads, repeats)
    return figures


def _peer(path: Path, num_threads: int, repeats: int) -> dict[str, Any]:
    """The same passes by llama.cpp's Python package."""
    llama = import_module(PEER_PACKAGE).Llama(
        str(path), n_ctx=512, n_threads=num_threads, n_threads_batch=num_threads, verbose=False
    )

    def timed_ms(num_tokens: int) -> Callable[[], float]:
        def once() -> float:
            llama.n_tokens = CONTEXT_TOKENS
            begin = time.perf_counter()
            llama.eval(list(range(100, 100 + num_tokens)))
            return (time.perf_counter() - begin) * 1e3

        return once

    llama.eval(list(range(100, 100 + CONTEXT_TOKENS)))
    decode, verify, prefill = (
        median([once() for _ in range(count)])
        for once, count in (
            (timed_ms(1), repeats),
            (timed_ms(VERIFY_TOKENS), repeats),
            (timed_ms(PREFILL_TOKENS), max(repeats // 3, 3)),
        )
    )
    return {
        "llama_cpp_decode_ms_per_token": round(decode, 2),
        f"llama_cpp_prefill_{PREFILL_TOKENS}_ms": round(prefill, 1),
        f"llama_cpp_verify{VERIFY_TOKENS}_over_1": round(verify / decode, 3),
    }
