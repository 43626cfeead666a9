from __future__ import annotations

from llm_engine.transformers_peer import TransformersPeer
from tests.llm_engine.engine_rig import greedy_twin, tiny_model


def test_it_continues_a_prompt_as_the_model_does() -> None:
    peer = TransformersPeer(tiny_model("llama2"))
    expected, _ = greedy_twin((1, 2, 3, 4), 5)
    assert peer.generate((1, 2, 3, 4), 5)[: len(expected)] == expected
    assert peer.first_token_ms((1, 2, 3, 4)) > 0
