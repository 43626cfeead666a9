"""How fast a model's passes are, beside what the memory allows; medians."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.model import Model, default_num_threads, load_model
from llm_engine.weights import WeightDtype

CONTEXT_TOKENS = 64
PREFILL_TOKENS = 39
VERIFY_TOKENS = 4
_COPY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Milliseconds of passes of 1, 4 and 39 tokens, of one read of all weights, of loading."""

    decode_ms: float
    verify_ms: float
    prefill_ms: float
    weights_read_ms: float  # bytes that a decode pass reads / measured read bandwidth
    read_gb_per_s: float
    weight_bytes: int
    load_ms: float
    first_pass_ms: float  # compilation included, where the cache holds nothing yet


def measure_model(
    path: Path, dtype: WeightDtype = "auto", num_threads: int | None = None, repeats: int = 30
) -> ModelSpeed:
    """Load the model and time its passes at a context of 64 tokens. Raises as `load_model`."""
    begin = time.perf_counter()
    model = load_model(path, dtype, num_threads=num_threads)
    load_ms = (time.perf_counter() - begin) * 1e3
    arena = model.new_arena(CONTEXT_TOKENS + PREFILL_TOKENS)

    def passes(num_tokens: int) -> Callable[[], object]:
        batch = _batch(model, CONTEXT_TOKENS, num_tokens)
        return lambda: model.forward(batch, arena)

    begin = time.perf_counter()
    model.forward(_batch(model, 0, CONTEXT_TOKENS), arena)
    first_pass_ms = (time.perf_counter() - begin) * 1e3
    # Decode and verify alternate: a busy machine slows both alike.
    decode, verify = [], []
    for _ in range(repeats):
        decode.append(_once_ms(passes(1)))
        verify.append(_once_ms(passes(VERIFY_TOKENS)))
    prefill = [_once_ms(passes(PREFILL_TOKENS)) for _ in range(max(repeats // 3, 3))]
    bandwidth = read_bandwidth(num_threads or default_num_threads())
    num_bytes = model.num_weight_bytes
    return ModelSpeed(
        decode_ms=float(np.median(decode)),
        verify_ms=float(np.median(verify)),
        prefill_ms=float(np.median(prefill)),
        weights_read_ms=num_bytes / bandwidth * 1e3,
        read_gb_per_s=bandwidth / 1e9,
        weight_bytes=num_bytes,
        load_ms=load_ms,
        first_pass_ms=first_pass_ms,
    )


def read_bandwidth(num_threads: int) -> float:
    """Bytes per second that so many threads of torch read from memory, the best of five."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        data = torch.ones(_COPY_BYTES // 4)
        return _COPY_BYTES / (min(_once_ms(data.sum) for _ in range(5)) / 1e3)
    finally:
        torch.set_num_threads(before)


def _once_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def _batch(model: Model, num_cached: int, num_tokens: int) -> Batch:
    """`num_tokens` arbitrary tokens after `num_cached` cached ones; the last one's logits."""
    positions = torch.arange(num_cached, num_cached + num_tokens)
    return Batch(
        token_ids=positions * 7919 % model.config.vocab_size,
        positions=positions,
        rows=positions,
        query_start=(0, num_tokens),
        extents=((ExtentView(0, num_cached + num_tokens, 0),),),
        logit_tokens=torch.arange(num_tokens)
        if num_tokens <= VERIFY_TOKENS
        else torch.tensor([num_tokens - 1]),
    )
