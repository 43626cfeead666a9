"""The same model in transformers: what a caller without an engine does.

Not a dependency of the engine: compared with where it is installed, and by the tests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

from llm_engine.config import ModelConfig, RopeConfig
from llm_engine.model import Model

PEER_PACKAGE = "transformers"


def is_installed() -> bool:
    return find_spec(PEER_PACKAGE) is not None


class TransformersPeer:
    """`generate` of a model's weights in float32, with the library's own choice of attention.

    `num_threads` is set for all of torch, which has no other way.
    """

    def __init__(self, model: Model, num_threads: int = 1) -> None:
        torch.set_num_threads(num_threads)
        self._model = twin_of(model, attention="sdpa")

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

    def first_token_ms(self, ids: Sequence[int]) -> float:
        """`generate` for one token: it keeps nothing from call to call."""
        begin = time.perf_counter()
        self.generate(ids, 1)
        return (time.perf_counter() - begin) * 1e3


def twin_of(
    model: Model, dtype: torch.dtype = torch.float32, attention: Literal["eager", "sdpa"] = "eager"
) -> Any:
    """A transformers model with `model`'s effective weights, whatever file they came from."""
    transformers: Any = import_module(PEER_PACKAGE)
    config = transformers.AutoConfig.for_model(**hf_config(model.config))
    config._attn_implementation = attention
    with torch.device("meta"):
        twin = transformers.AutoModelForCausalLM.from_config(config)
    twin = twin.to_empty(device="cpu").to(dtype)
    state = {name: tensor.to(dtype) for name, tensor in model.dense_state().items()}
    twin.load_state_dict(state, strict=True)
    # Buffers are not part of the state: the rotary frequencies are computed again.
    twin.model.rotary_emb = type(twin.model.rotary_emb)(config)
    return twin.eval()


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """The config.json that describes `config`."""
    window = next((w for w in config.windows if w is not None), None)
    raw: dict[str, Any] = {
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "rope_parameters": _hf_rope(config.rope),
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
    }
    if config.family != "llama":
        raw["sliding_window"] = window
    if config.family in ("qwen2", "qwen3") and window is not None:
        raw["use_sliding_window"] = True
        raw["layer_types"] = [
            "full_attention" if w is None else "sliding_attention" for w in config.windows
        ]
    return raw


def _hf_rope(rope: RopeConfig) -> dict[str, Any]:
    raw: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind == "default":
        return raw
    raw["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        raw["original_max_position_embeddings"] = rope.original_context
    if rope.kind == "llama3":
        raw |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        raw |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
        raw |= {"attention_factor": rope.attention_factor, "truncate": rope.truncate}
    return raw
