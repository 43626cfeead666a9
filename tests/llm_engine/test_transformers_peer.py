from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from llm_engine.random_model import random_config
from llm_engine.transformers_peer import TransformersPeer
from tests.llm_engine.engine_rig import greedy_twin, tiny_model


def test_it_continues_a_prompt_as_the_twin_does(tmp_path: Path) -> None:
    model = tiny_model("llama2")
    state = {name: tensor.contiguous() for name, tensor in model.dense_state().items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = random_config("llama2") | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    peer = TransformersPeer(tmp_path)
    expected, _ = greedy_twin((1, 2, 3, 4), 5)
    assert peer.generate((1, 2, 3, 4), 5)[: len(expected)] == expected
    assert peer.first_token_ms((1, 2, 3, 4), 1) > 0
