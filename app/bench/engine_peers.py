"""What others take until the first token of a changed prompt: transformers, llama.cpp.

Each is measured where its Python package is installed. llama.cpp keeps, as its prompt cache does,
the tokens that both prompts begin with; transformers' `generate` keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from os.path import commonprefix
from pathlib import Path
from statistics import median
from typing import Protocol

from llm_engine.model import Model
from llm_engine.prompt import Snapshot
from llm_engine.transformers_peer import TransformersPeer, is_installed

PEER_PACKAGE = "llama_cpp"  # never a dependency
CONTEXT_TOKENS = 1024


class Peer(Protocol):
    """One that answers a prompt right after another one."""

    def first_token_ms(self, before: Snapshot, after: Snapshot) -> float: ...


class Transformers:
    """`generate`, float32."""

    def __init__(self, model: Model, num_threads: int) -> None:
        self._peer = TransformersPeer(model, num_threads)

    def first_token_ms(self, before: Snapshot, after: Snapshot) -> float:
        return self._peer.first_token_ms(after.token_ids)


class LlamaCpp:
    """The same GGUF file, by llama.cpp."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self._llama = import_module(PEER_PACKAGE).Llama(
            str(path),
            n_ctx=CONTEXT_TOKENS,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            verbose=False,
        )

    def first_token_ms(self, before: Snapshot, after: Snapshot) -> float:
        ids = after.token_ids
        self._eval(0, before.token_ids)
        # the last token is always computed: its logits are not kept
        num_kept = min(len(commonprefix([before.token_ids, ids])), len(ids) - 1)
        begin = time.perf_counter()
        self._eval(num_kept, ids)
        self._llama.sample(temp=0.0)
        return (time.perf_counter() - begin) * 1e3

    def _eval(self, num_kept: int, ids: Sequence[int]) -> None:
        self._llama.n_tokens = num_kept
        self._llama.eval(list(ids[num_kept:]))


def installed_peers(path: Path, model: Model, num_threads: int) -> dict[str, Peer]:
    """By name."""
    peers: dict[str, Peer] = {}
    if is_installed():
        peers["transformers"] = Transformers(model, num_threads)
    if path.suffix == ".gguf" and find_spec(PEER_PACKAGE) is not None:
        peers["llama_cpp"] = LlamaCpp(path, num_threads)
    return peers


def peer_figures(
    peers: Mapping[str, Peer], scenarios: Mapping[str, Sequence[tuple[Snapshot, Snapshot]]]
) -> dict[str, float]:
    """`<peer>_<scenario>_ms`: median time to the first token of a scenario's second prompts."""
    figures = {}
    for name, peer in peers.items():
        for scenario, prompts in scenarios.items():
            peer.first_token_ms(*prompts[0])  # warms up
            times = [peer.first_token_ms(before, after) for before, after in prompts]
            figures[f"{name}_{scenario}_ms"] = round(median(times), 1)
    return figures
