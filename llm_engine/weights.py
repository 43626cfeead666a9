"""A decoder's weights in the form they are computed with, whatever file they come from.

q, k, v are kept as one matrix and so are gate and up: one product instead of three and two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch

from kernels.errors import KernelArgumentError
from kernels.linear import (
    DenseWeight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    quantise_int4,
    quantise_int8,
)
from llm_engine.config import ModelConfig, ModelError, UnsupportedModel

WeightDtype = Literal["auto", "float32", "bfloat16", "int8", "int4"]


class ModelFileError(ModelError):
    """A model's files are missing, damaged or of the wrong shape: `path` and `problem`."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor  # [H]
    qkv: LinearWeight  # [(Hq + 2 Hkv) D, H]: q, k, v one below the other
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    output: LinearWeight  # [H, Hq D]
    post_norm: torch.Tensor  # [H]
    gate_up: LinearWeight  # [2I, H]: gate above up
    down: LinearWeight  # [H, I]


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: LinearWeight  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [H]
    head: LinearWeight  # [V, H]; the same object as `embedding` where they are tied


class TensorSource(Protocol):
    """Tensors by Hugging Face name, wherever they are stored."""

    path: Path

    def __contains__(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def vector(self, name: str) -> torch.Tensor: ...
    def linear(self, name: str) -> LinearWeight: ...


def load_weights(
    source: TensorSource, config: ModelConfig, dtype: WeightDtype, device: torch.device
) -> Weights:
    """Every weight that `config` calls for, converted to `dtype`, on `device`.

    "auto" keeps quantised blocks as they are and makes the rest float32 (bfloat16 on CUDA); "int4"
    keeps embedding and head in int8.

    Raises:
        ModelFileError: a tensor is missing or of the wrong shape.
        UnsupportedModel: `dtype` is unknown or does not fit the model's sizes.
    """
    if dtype not in get_args(WeightDtype):
        raise UnsupportedModel("weight dtype", dtype, ", ".join(get_args(WeightDtype)))
    loader = _Loader(source, config, dtype, device)
    hidden, vocabulary = config.hidden_size, config.vocab_size
    embedding = loader.table("model.embed_tokens.weight", (vocabulary, hidden))
    head = embedding
    if not config.tie_embeddings:
        head = loader.table("lm_head.weight", (vocabulary, hidden))
    return Weights(
        embedding,
        tuple(loader.layer(index) for index in range(config.num_layers)),
        loader.vector("model.norm.weight", hidden),
        head,
    )


class _Loader:
    def __init__(
        self, source: TensorSource, config: ModelConfig, dtype: WeightDtype, device: torch.device
    ) -> None:
        self._source = source
        self._config = config
        self._dtype = dtype
        self._device = device
        self._float = activation_dtype(dtype, device)

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        query, kv, head_dim = config.query_size, config.kv_size, config.head_dim
        attention = prefix + "self_attn."
        return LayerWeights(
            input_norm=self.vector(prefix + "input_layernorm.weight", hidden),
            qkv=self._stacked(
                [attention + "q_proj", attention + "k_proj", attention + "v_proj"],
                [(query, hidden), (kv, hidden), (kv, hidden)],
                config.qkv_bias,
            ),
            q_norm=self._head_norm(attention + "q_norm.weight", head_dim),
            k_norm=self._head_norm(attention + "k_norm.weight", head_dim),
            output=self._stacked([attention + "o_proj"], [(hidden, query)], config.output_bias),
            post_norm=self.vector(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self._stacked(
                [prefix + "mlp.gate_proj", prefix + "mlp.up_proj"],
                [(inner, hidden), (inner, hidden)],
                config.mlp_bias,
            ),
            down=self._stacked([prefix + "mlp.down_proj"], [(hidden, inner)], config.mlp_bias),
        )

    def _head_norm(self, name: str, size: int) -> torch.Tensor | None:
        return self.vector(name, size) if self._config.qk_norm else None

    def vector(self, name: str, size: int) -> torch.Tensor:
        self._check(name, (size,))
        return self._source.vector(name).to(self._device, self._float)

    def table(self, name: str, shape: tuple[int, int]) -> LinearWeight:
        """Embedding or head: never below int8."""
        self._check(name, shape)
        dtype: WeightDtype = "int8" if self._dtype == "int4" else self._dtype
        return self._converted(name, self._source.linear(name), dtype)

    def _stacked(
        self, names: list[str], shapes: list[tuple[int, int]], has_bias: bool
    ) -> LinearWeight:
        parts = []
        for name, shape in zip(names, shapes, strict=True):
            self._check(f"{name}.weight", shape)
            weight = self._source.linear(f"{name}.weight")
            parts.append(self._converted(name, weight, self._dtype))
        bias = None
        if has_bias:
            bias = torch.cat(
                [
                    self.vector(f"{name}.bias", shape[0])
                    for name, shape in zip(names, shapes, strict=True)
                ]
            )
        return replace(stack(parts), bias=bias)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._source:
            raise ModelFileError(self._source.path, f"tensor {name} is missing")
        if (found := self._source.shape(name)) != shape:
            raise ModelFileError(
                self._source.path, f"tensor {name} has shape {found}, the config says {shape}"
            )

    def _converted(self, name: str, weight: LinearWeight, dtype: WeightDtype) -> LinearWeight:
        try:
            return move(convert(weight, dtype, self._float), lambda t: t.to(self._device))
        except KernelArgumentError as cause:
            raise UnsupportedModel(f"{dtype} for {name}", weight.shape, str(cause)) from cause


def activation_dtype(dtype: WeightDtype, device: torch.device) -> torch.dtype:
    """What activations are computed in: bfloat16 where asked for and on CUDA, else float32."""
    if dtype == "bfloat16" or (device.type == "cuda" and dtype != "float32"):
        return torch.bfloat16
    return torch.float32


def convert(weight: LinearWeight, dtype: WeightDtype, float_dtype: torch.dtype) -> LinearWeight:
    """`weight` in the form that `dtype` names; dense weights become `float_dtype`."""
    if dtype == "int8":
        return weight if isinstance(weight, Int8Weight) else quantise_int8(weight.dense())
    if dtype == "int4":
        return weight if isinstance(weight, Int4Weight) else quantise_int4(weight.dense())
    if dtype == "auto" and not isinstance(weight, DenseWeight):
        return weight
    dense = weight.w if isinstance(weight, DenseWeight) else weight.dense()
    return DenseWeight(dense.to(float_dtype))


def move(weight: LinearWeight, to: Callable[[torch.Tensor], torch.Tensor]) -> LinearWeight:
    """`weight` with `to` applied to every tensor but the bias, which it must not have yet."""
    if isinstance(weight, DenseWeight):
        return DenseWeight(to(weight.w))
    if isinstance(weight, Int8Weight):
        return Int8Weight(to(weight.q), to(weight.scale))
    return Int4Weight(to(weight.packed), to(weight.scale), to(weight.minimum))


def stack(parts: list[LinearWeight]) -> LinearWeight:
    """The matrices one below the other. Parts of different kinds become dense float32."""
    if len(parts) == 1:
        return parts[0]
    eights = [part for part in parts if isinstance(part, Int8Weight)]
    fours = [part for part in parts if isinstance(part, Int4Weight)]
    if len(eights) == len(parts):
        return Int8Weight(
            torch.cat([part.q for part in eights]), torch.cat([part.scale for part in eights])
        )
    if len(fours) == len(parts):
        return Int4Weight(
            torch.cat([part.packed for part in fours]),
            torch.cat([part.scale for part in fours]),
            torch.cat([part.minimum for part in fours]),
        )
    dense = [part.w if isinstance(part, DenseWeight) else part.dense() for part in parts]
    return DenseWeight(torch.cat(dense))
