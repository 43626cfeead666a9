from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.bench import engine_peers


def test_without_the_package_or_for_another_format_there_are_no_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert engine_peers.llama_cpp_first_token_ms(Path("model"), (1,), 1, 1) == {}
    monkeypatch.setattr(engine_peers, "find_spec", lambda name: None)
    assert engine_peers.llama_cpp_first_token_ms(Path("m.gguf"), (1,), 1, 1) == {}


def test_the_peer_evaluates_the_whole_prompt_and_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[tuple[int, int]] = []

    class Llama:
        def __init__(self, path: str, **options: object) -> None:
            self.n_tokens = 0

        def eval(self, ids: list[int]) -> None:
            evaluated.append((self.n_tokens, len(ids)))

        def sample(self, temp: float) -> int:
            return 0

    monkeypatch.setattr(engine_peers, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    figures = engine_peers.llama_cpp_first_token_ms(Path("m.gguf"), tuple(range(20)), 1, 1)
    assert evaluated == [(0, 20), (0, 20), (12, 8)]
    assert set(figures) == {"llama_cpp_full_prefill_ms", "llama_cpp_tail_revision_ms"}
