from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.bench import engine_peers
from app.bench.engine_peers import LlamaCpp, installed_peers, peer_figures
from llm_engine.prompt import Segment, Snapshot
from llm_engine.random_model import random_model


def prompt(*ids: int) -> Snapshot:
    return Snapshot(0, (Segment("slot", "slot", ids),))


def test_a_peer_is_there_where_its_package_and_a_file_it_reads_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model("smollm2", 0)
    monkeypatch.setattr(engine_peers, "find_spec", lambda name: None)
    assert installed_peers(Path("m.gguf"), model, 1).keys() == {"transformers"}
    monkeypatch.setattr(engine_peers, "is_installed", lambda: False)
    assert installed_peers(Path("m.gguf"), model, 1) == {}
    monkeypatch.setattr(engine_peers, "find_spec", lambda name: object())
    assert installed_peers(Path("folder"), model, 1) == {}


def test_every_peer_gives_a_figure_per_scenario() -> None:
    peers = installed_peers(Path("folder"), random_model("smollm2", 0), 1)
    scenarios = {"tail": [(prompt(1, 2, 3), prompt(1, 2, 4))], "same": [(prompt(5), prompt(5))]}
    figures = peer_figures(peers, scenarios)
    assert figures.keys() == {"transformers_tail_ms", "transformers_same_ms"}
    assert min(figures.values()) > 0


def test_llama_cpp_keeps_what_the_prompts_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[tuple[int, list[int]]] = []

    class Llama:
        def __init__(self, path: str, **options: object) -> None:
            self.n_tokens = 0

        def eval(self, ids: list[int]) -> None:
            evaluated.append((self.n_tokens, ids))

        def sample(self, temp: float) -> int:
            return 0

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    peer = LlamaCpp(Path("m.gguf"), 1)
    peer.first_token_ms(prompt(1, 2, 3), prompt(1, 2, 4, 5))
    peer.first_token_ms(prompt(1, 2, 3), prompt(1, 2, 3))
    assert evaluated == [(0, [1, 2, 3]), (2, [4, 5]), (0, [1, 2, 3]), (2, [3])]
