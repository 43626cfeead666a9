"""What a model is made of: `ModelConfig`, read from a Hugging Face config.json or GGUF metadata.

Everything that the decoder does differently from one family to the next is a field here; the
decoder itself never asks for a family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
GGUF_FAMILIES = ("llama", "qwen2", "qwen3")  # GGUF files of Mistral and SmolLM2 say "llama"
ROPE_KINDS = ("default", "linear", "llama3", "yarn")

RopeKind = Literal["default", "linear", "llama3", "yarn", "factors"]


class ModelError(ValueError):
    """A model cannot be used; the message names the value that stands in the way."""


class UnsupportedModel(ModelError):
    """The model is sound but asks for something the decoder does not do."""

    def __init__(self, what: str, value: object, supported: object) -> None:
        super().__init__(f"{what} {value!r} is not supported; supported: {supported}")
        self.what = what
        self.value = value


class BadModelConfig(ModelError):
    """The model's description lacks a value or holds an impossible one."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base and how its frequencies are scaled to longer contexts.

    `kind`: "linear" (all divided by `factor`), "llama3" (Llama 3.1), "yarn" (Peng et al. 2023), or
    "factors": every frequency divided by its own entry of `factors` (how GGUF stores Llama 3.1).
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1
    truncate: bool = True  # yarn: ramp borders rounded to whole dimensions
    factors: tuple[float, ...] = ()  # [D/2]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder.

    Raises:
        BadModelConfig: sizes that do not fit each other.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    rope: RopeConfig
    windows: tuple[int | None, ...]  # per layer: positions seen, None: all
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention output
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm per head on q and k before rotation

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers"):
            self._check(getattr(self, name) > 0, f"{name} is {getattr(self, name)}")
        self._check(
            self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads",
        )
        self._check(
            self.head_dim > 0 and self.head_dim % 2 == 0, f"head dimension is {self.head_dim}"
        )
        self._check(
            len(self.windows) == self.num_layers,
            f"{len(self.windows)} attention windows for {self.num_layers} layers",
        )
        self._check(
            all(window is None or window > 0 for window in self.windows),
            f"attention windows are {self.windows}",
        )
        if self.rope.kind == "factors":
            self._check(
                len(self.rope.factors) == self.head_dim // 2,
                f"{len(self.rope.factors)} rope factors for heads of {self.head_dim}",
            )

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            raise BadModelConfig(f"model config of family {self.family!r}: {problem}")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """From the contents of a Hugging Face config.json.

        Raises:
            UnsupportedModel: the family, activation or RoPE scaling is none of those supported.
            BadModelConfig: a value is missing or of the wrong type.
        """
        family = raw.get("model_type")
        if family not in FAMILIES:
            raise UnsupportedModel("architecture", family, ", ".join(FAMILIES))
        activation = raw.get("hidden_act", "silu")
        if activation != "silu":
            raise UnsupportedModel("activation", activation, "silu")
        fields = _Fields(raw, "config.json")
        num_layers, num_heads = (
            fields.integer("num_hidden_layers"),
            fields.integer("num_attention_heads"),
        )
        hidden_size = fields.integer("hidden_size")
        max_positions = fields.integer("max_position_embeddings", 2048)
        bias = bool(raw.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=fields.integer("head_dim", hidden_size // max(num_heads, 1)),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_positions=max_positions,
            rope=_rope_from_hf(raw, max_positions),
            windows=_windows_from_hf(raw, family, num_layers),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or bias,
            output_bias=bias and family != "qwen2",
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
        )

    @classmethod
    def from_gguf(
        cls,
        raw: Mapping[str, Any],
        tensor_names: frozenset[str],
        rope_factors: tuple[float, ...] = (),
    ) -> ModelConfig:
        """From GGUF metadata, the names of the file's tensors, and its `rope_freqs` if any.

        Raises:
            UnsupportedModel: the architecture or RoPE scaling is none of those supported.
            BadModelConfig: a value is missing or of the wrong type.
        """
        family = raw.get("general.architecture")
        if family not in GGUF_FAMILIES:
            raise UnsupportedModel("architecture", family, ", ".join(GGUF_FAMILIES))
        prefix = f"{family}."
        fields = _Fields(
            {key.removeprefix(prefix): value for key, value in raw.items()}, "GGUF metadata"
        )
        if num_experts := fields.integer("expert_count", 0):
            raise UnsupportedModel("mixture of experts, expert_count", num_experts, "dense models")
        num_layers, num_heads = (
            fields.integer("block_count"),
            fields.integer("attention.head_count"),
        )
        hidden_size = fields.integer("embedding_length")
        head_dim = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
        for key in ("rope.dimension_count", "attention.value_length"):
            if (size := fields.integer(key, head_dim)) != head_dim:
                raise UnsupportedModel(key, size, f"the head dimension, {head_dim}")
        window = fields.integer("attention.sliding_window", 0) or None
        vocabulary = raw.get("tokenizer.ggml.tokens", ())
        return cls(
            family=family,
            vocab_size=fields.integer("vocab_size", len(vocabulary)),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            max_positions=fields.integer("context_length"),
            rope=_rope_from_gguf(fields, rope_factors),
            windows=(window,) * num_layers,
            tie_embeddings="output.weight" not in tensor_names,
            qkv_bias="blk.0.attn_q.bias" in tensor_names,
            output_bias="blk.0.attn_output.bias" in tensor_names,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
            qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        )


class _Fields:
    """Typed reading of a mapping that came from a file."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self._raw = raw
        self._where = where

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadModelConfig(f"{self._where}: {key} must be a whole number, is {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadModelConfig(f"{self._where}: {key} must be a number, is {value!r}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return str(self._raw.get(key) or default)


def _windows_from_hf(
    raw: Mapping[str, Any], family: str, num_layers: int
) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if family == "llama" or window is None:
        return (None,) * num_layers
    if not isinstance(window, int):
        raise BadModelConfig(f"config.json: sliding_window must be a whole number, is {window!r}")
    if family == "mistral":
        return (window,) * num_layers
    if not raw.get("use_sliding_window", False):
        return (None,) * num_layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", num_layers))
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope_from_hf(raw: Mapping[str, Any], max_positions: int) -> RopeConfig:
    # transformers 5 writes rope_parameters, earlier ones rope_theta beside rope_scaling.
    scaling = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    theta = float(scaling.get("rope_theta", raw.get("rope_theta", 10_000.0)))
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModel("partial_rotary_factor", partial, 1.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise UnsupportedModel("RoPE scaling", kind, ", ".join(ROPE_KINDS))
    if kind == "default":
        return RopeConfig(theta)
    fields = _Fields(scaling, "config.json rope scaling")
    if scaling.get("mscale") or scaling.get("mscale_all_dim"):
        raise UnsupportedModel("RoPE scaling with mscale", scaling.get("mscale"), "none")
    attention_factor = scaling.get("attention_factor")
    return RopeConfig(
        theta,
        kind,
        fields.number("factor"),
        original_context=fields.integer("original_max_position_embeddings", max_positions),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        attention_factor=None if attention_factor is None else float(attention_factor),
        truncate=bool(scaling.get("truncate", True)),
    )


def _rope_from_gguf(fields: _Fields, factors: tuple[float, ...]) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10_000.0)
    kind = fields.text("rope.scaling.type", "none")
    if factors:
        return RopeConfig(theta, "factors", factors=factors)
    if kind == "none":
        return RopeConfig(theta)
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel("RoPE scaling", kind, "none, linear, yarn")
    context = fields.integer("context_length")
    return RopeConfig(
        theta,
        "linear" if kind == "linear" else "yarn",
        fields.number("rope.scaling.factor"),
        original_context=fields.integer("rope.scaling.original_context_length", context),
    )
