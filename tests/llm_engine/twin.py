"""The same model in transformers: the reference that the decoder is compared with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llm_engine.batch import Batch, ExtentView
from llm_engine.config import ModelConfig, RopeConfig
from llm_engine.model import Model


def twin_of(model: Model, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model with `model`'s effective weights."""
    config = AutoConfig.for_model(**hf_config(model.config))
    config._attn_implementation = "eager"
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config)
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


def twin_logits(twin: Any, token_ids: list[int]) -> torch.Tensor:
    """float32[T, V] of one sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = twin(torch.tensor([token_ids])).logits[0].float()
    return logits


def one_sequence(token_ids: list[int], first_row: int = 0, num_cached: int = 0) -> Batch:
    """A batch of one sequence in one extent: `token_ids` follow `num_cached` rows already there."""
    num_tokens = len(token_ids)
    positions = torch.arange(num_cached, num_cached + num_tokens)
    return Batch(
        token_ids=torch.tensor(token_ids),
        positions=positions,
        rows=positions + first_row,
        query_start=(0, num_tokens),
        extents=((ExtentView(first_row, num_cached + num_tokens, 0),),),
        logit_tokens=torch.arange(num_tokens),
    )
