"""llama.cpp with its own prompt cache, where somebody installed its Python package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median

PEER_PACKAGE = "llama_cpp"  # never a dependency


def llama_cpp_first_token_ms(
    path: Path, ids: Sequence[int], num_threads: int, repeats: int
) -> dict[str, float]:
    """First token of a prompt computed whole, and with all but its last 8 tokens in the cache.

    Empty where the package is missing or the file is not GGUF.
    """
    if path.suffix != ".gguf" or find_spec(PEER_PACKAGE) is None:
        return {}
    llama = import_module(PEER_PACKAGE).Llama(
        str(path), n_ctx=1024, n_threads=num_threads, n_threads_batch=num_threads, verbose=False
    )

    def first_token_ms(num_cached: int) -> float:
        llama.n_tokens = num_cached
        begin = time.perf_counter()
        llama.eval(list(ids[num_cached:]))
        llama.sample(temp=0.0)
        return (time.perf_counter() - begin) * 1e3

    llama.eval(list(ids))
    whole = median([first_token_ms(0) for _ in range(repeats)])
    tail = median([first_token_ms(len(ids) - 8) for _ in range(repeats)])
    return {
        "llama_cpp_full_prefill_ms": round(whole, 1),
        "llama_cpp_tail_revision_ms": round(tail, 1),
    }
