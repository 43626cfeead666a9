"""Small models with random weights, one per supported family, for tests and kernel checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernels.linear import DenseWeight, LinearWeight
from llm_engine.config import ModelConfig, UnsupportedModel
from llm_engine.model import Model
from llm_engine.weights import WeightDtype, activation_dtype, load_weights

_SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
_FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "llama2": {"model_type": "llama"},
    "llama3": {"model_type": "llama", "rope_parameters": _LLAMA3_ROPE},
    "llama-linear": {"model_type": "llama", "rope_parameters": _LINEAR_ROPE},
    "smollm2": {
        "model_type": "llama",
        "num_attention_heads": 6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": 16},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-yarn": {"model_type": "qwen2", "rope_parameters": _YARN_ROPE},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
}
RANDOM_FAMILIES = tuple(_FAMILY_FIELDS)


def random_config(family: str, **sizes: Any) -> dict[str, Any]:
    """The config.json of a small model of `family`; `sizes` replaces any of its keys.

    Raises:
        UnsupportedModel: `family` is not one of `RANDOM_FAMILIES`.
    """
    if family not in _FAMILY_FIELDS:
        raise UnsupportedModel("family", family, ", ".join(RANDOM_FAMILIES))
    return {**_SIZES, **_FAMILY_FIELDS[family], **sizes}


def random_model(
    family: str,
    seed: int,
    dtype: WeightDtype = "float32",
    device: torch.device | str = "cpu",
    **sizes: Any,
) -> Model:
    """A small model with random weights (the same for the same arguments).

    Weights have standard deviation 1/sqrt(K), so that activations keep their size through the
    layers and logits differ enough for a greedy choice to be stable.
    """
    config = ModelConfig.from_hf(random_config(family, **sizes))
    where = torch.device(device)
    weights = load_weights(_RandomTensors(config, seed), config, dtype, where)
    return Model(config, weights, activation_dtype(dtype, where), where)


class _RandomTensors:
    """A tensor source that makes up what is asked for, in the order of asking."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.path = Path(f"random-{config.family}-{seed}")
        self._config = config
        self._generator = torch.Generator().manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return True

    def shape(self, name: str) -> tuple[int, ...]:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = {
            "embed_tokens": (config.vocab_size, hidden),
            "lm_head": (config.vocab_size, hidden),
            "q_proj": (config.query_size, hidden),
            "k_proj": (config.kv_size, hidden),
            "v_proj": (config.kv_size, hidden),
            "o_proj": (hidden, config.query_size),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
            "q_norm": (config.head_dim,),
            "k_norm": (config.head_dim,),
        }
        *_, part, leaf = name.split(".")
        shape = shapes.get(part, (hidden,))
        return shape[:1] if leaf == "bias" else shape

    def vector(self, name: str) -> torch.Tensor:
        noise = torch.randn(self.shape(name), generator=self._generator) * 0.1
        return noise if name.endswith("bias") else 1.0 + noise

    def linear(self, name: str) -> LinearWeight:
        num_outputs, num_inputs = self.shape(name)
        noise = torch.randn(num_outputs, num_inputs, generator=self._generator)
        return DenseWeight(noise / num_inputs**0.5)
