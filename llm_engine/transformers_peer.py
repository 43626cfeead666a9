"""The same model in transformers, for comparison: what a caller without an engine does.

Not a dependency of the engine: compared with where it is installed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

PEER_PACKAGE = "transformers"


def is_installed() -> bool:
    return find_spec(PEER_PACKAGE) is not None


class TransformersPeer:
    """`path`: a model folder (for GGUF files transformers wants a further package); float32."""

    def __init__(self, path: Path) -> None:
        loaded: Any = import_module(PEER_PACKAGE).AutoModelForCausalLM.from_pretrained(
            str(path), dtype=torch.float32, local_files_only=True
        )
        self._model = loaded.eval()

    def generate(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        """Greedy continuation of `ids`, the prompt not included."""
        prompt = torch.tensor([list(ids)])
        with torch.inference_mode():
            out = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=max_tokens,
                pad_token_id=0,
            )
        reply: list[int] = out[0, len(ids) :].tolist()
        return reply

    def first_token_ms(self, ids: Sequence[int], repeats: int) -> float:
        """Median time of `generate` for one token."""
        times = []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            self.generate(ids, 1)
            times.append((time.perf_counter() - begin) * 1e3)
        return round(median(times[1:]), 1)  # the first call warms up
