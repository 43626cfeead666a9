"""The decoder: one configuration-driven forward pass for every supported family.

Legend: T tokens of a batch, N wanted logits, V vocabulary, H hidden size, Hq/Hkv heads, D head
dimension, I intermediate size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from kernels.dispatch import forced_backend
from kernels.errors import PassAbandoned
from kernels.kv import KVArena, LayerKV
from kernels.linear import LinearWeight, linear
from kernels.rms_norm import rms_norm
from kernels.rope import rope_and_write_kv
from kernels.segment_attention import AttentionTable, segment_attention
from kernels.swiglu import swiglu
from llm_engine.batch import Batch
from llm_engine.config import ModelConfig, ModelError
from llm_engine.fast_pass import FastPass
from llm_engine.rotary import RotaryTable
from llm_engine.weights import (
    LayerWeights,
    WeightDtype,
    Weights,
    activation_dtype,
    load_weights,
)


class Model:
    """Weights and the forward pass over a flattened batch. Holds no state of any sequence."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        num_threads: int | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype  # of activations, and of K/V rows unless chosen otherwise
        self.device = device
        self.scale = config.head_dim**-0.5
        self.rotary = RotaryTable(config.rope, config.head_dim, device)
        self._fast: FastPass | None = None
        if FastPass.supports(weights, device, dtype):
            self._fast = FastPass(config, weights, num_threads or default_num_threads())
        else:
            self.weights = weights

    @cached_property
    def weights(self) -> Weights:
        """The weights as the operators take them; the CPU pass keeps its own form of them only."""
        assert self._fast is not None  # else they were set at the start
        return self._fast.unpacked()

    @property
    def has_cpu_pass(self) -> bool:
        """Whether passes run as one compiled function (kernels/cpu_pass.py)."""
        return self._fast is not None

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of weights that a pass reads (an embedding that is not the head is looked up)."""
        if self._fast is not None:
            return self._fast.num_weight_bytes
        matrices = [self.weights.head]
        for layer in self.weights.layers:
            matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return sum(matrix.num_bytes for matrix in matrices)

    def new_arena(self, num_rows: int, kv_dtype: torch.dtype | None = None) -> KVArena:
        """A zero-filled arena for this model's layers; K/V in the activations' dtype by default."""
        config = self.config
        return KVArena(
            config.num_layers,
            num_rows,
            config.num_kv_heads,
            config.head_dim,
            kv_dtype or self.dtype,
            self.device,
        )

    @torch.inference_mode()
    def forward(
        self, batch: Batch, arena: KVArena, may_go_on: Callable[[], bool] | None = None
    ) -> torch.Tensor:
        """One pass: write K/V of every token of `batch` to `arena`, return logits[N, V] float32.

        N = the batch's `logit_tokens`, in their order. `may_go_on` is asked every few layers.

        Raises:
            PassAbandoned: it said no; the tokens' rows hold nothing of use.
        """
        positions = batch.positions.to(self.device)
        rows = batch.rows.to(self.device)
        wanted = batch.logit_tokens.to(self.device)
        cos, sin = self.rotary.at(positions, int(batch.positions.max()))
        table = AttentionTable.build(batch.extents, batch.query_start, positions)
        token_ids = batch.token_ids.to(self.device)
        if self._fast is not None and arena.dtype == torch.float32 and forced_backend() is None:
            return self._fast.forward(token_ids, cos, sin, rows, table, wanted, arena, may_go_on)
        return self.compute(token_ids, rows, cos, sin, table, wanted, arena, may_go_on)

    def compute(
        self,
        token_ids: torch.Tensor,
        rows: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        table: AttentionTable,
        wanted: torch.Tensor,
        arena: KVArena,
        may_go_on: Callable[[], bool] | None = None,
    ) -> torch.Tensor:
        """The pass over tensors of this model's device, as `forward`: what a CUDA graph captures.

        token_ids[T] and rows[T] int64, cos/sin[T, D/2] of the tokens' positions, wanted[N] int64.
        """
        hidden = self.weights.embedding.rows(token_ids).to(self.dtype)
        residual: torch.Tensor | None = None  # [T, H]
        for layer, cache, window in zip(
            self.weights.layers, arena.layers, self.config.windows, strict=True
        ):
            if may_go_on is not None and not may_go_on():
                raise PassAbandoned
            normed, residual = rms_norm(hidden, layer.input_norm, self._eps, residual)
            q, k, v = self._project(normed, layer)
            q = rope_and_write_kv(q, k, v, cos, sin, rows, cache)
            attended = self._attend(q, cache, table, window)
            hidden = linear(attended, layer.output)
            normed, residual = rms_norm(hidden, layer.post_norm, self._eps, residual)
            hidden = linear(swiglu(linear(normed, layer.gate_up)), layer.down)
        assert residual is not None  # a config has at least one layer
        hidden, residual = hidden[wanted], residual[wanted]
        normed, _ = rms_norm(hidden, self.weights.final_norm, self._eps, residual)
        return linear(normed, self.weights.head).float()

    @property
    def _eps(self) -> float:
        return self.config.rms_norm_eps

    def _project(
        self, x: torch.Tensor, layer: LayerWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x[T,H] -> q[T,Hq,D], k[T,Hkv,D], v[T,Hkv,D], with q and k normalised where asked for."""
        config = self.config
        fused = linear(x, layer.qkv)
        q, k, v = torch.split(fused, [config.query_size, config.kv_size, config.kv_size], dim=-1)
        q = q.reshape(-1, config.num_heads, config.head_dim)
        k = k.reshape(-1, config.num_kv_heads, config.head_dim)
        v = v.reshape(-1, config.num_kv_heads, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm_heads(q, layer.q_norm), self._norm_heads(k, layer.k_norm)
        return q, k, v

    def _norm_heads(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed, _ = rms_norm(x.reshape(-1, x.shape[-1]), weight, self._eps)
        return normed.reshape(x.shape)

    def _attend(
        self, q: torch.Tensor, cache: LayerKV, table: AttentionTable, window: int | None
    ) -> torch.Tensor:
        """[T, Hq*D]"""
        return segment_attention(q, cache, table, self.scale, window).flatten(1)

    def dense_state(self) -> dict[str, torch.Tensor]:
        """The effective weights as float32 under Hugging Face names: the model's twin elsewhere."""
        state = {
            "model.embed_tokens.weight": self.weights.embedding.dense(),
            "model.norm.weight": self.weights.final_norm.float(),
            "lm_head.weight": self.weights.head.dense(),
        }
        for index, layer in enumerate(self.weights.layers):
            state |= self._layer_state(f"model.layers.{index}.", layer)
        return state

    def _layer_state(self, prefix: str, layer: LayerWeights) -> dict[str, torch.Tensor]:
        config, attention = self.config, prefix + "self_attn."
        sizes = (config.query_size, config.kv_size, config.kv_size)
        inner = (config.intermediate_size, config.intermediate_size)
        qkv = [f"{attention}{name}_proj" for name in "qkv"]
        state = {
            f"{prefix}input_layernorm.weight": layer.input_norm.float(),
            f"{prefix}post_attention_layernorm.weight": layer.post_norm.float(),
            **_split(layer.qkv, qkv, sizes),
            **_split(layer.output, [f"{attention}o_proj"], (config.hidden_size,)),
            **_split(layer.gate_up, [f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"], inner),
            **_split(layer.down, [f"{prefix}mlp.down_proj"], (config.hidden_size,)),
        }
        if layer.q_norm is not None and layer.k_norm is not None:
            state[f"{attention}q_norm.weight"] = layer.q_norm.float()
            state[f"{attention}k_norm.weight"] = layer.k_norm.float()
        return state


def _split(
    weight: LinearWeight, names: list[str], sizes: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    parts = zip(names, torch.split(weight.dense(), list(sizes)), strict=True)
    state = {f"{name}.weight": part.contiguous() for name, part in parts}
    if weight.bias is not None:
        biases = zip(names, torch.split(weight.bias.float(), list(sizes)), strict=True)
        state |= {f"{name}.bias": part.contiguous() for name, part in biases}
    return state


class DeviceUnavailable(ModelError):
    """The model was to run where this machine has nothing to run it on."""


def resolve_device(name: torch.device | str) -> torch.device:
    """ "auto": the first CUDA device if there is one, else the CPU. Raises DeviceUnavailable."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not has_cuda:
        built = "" if torch.version.cuda else ", and this torch is built without CUDA"
        raise DeviceUnavailable(f"device {str(name)!r}: no CUDA device is found{built}; use 'cpu'")
    return device


def load_model(
    path: Path,
    dtype: WeightDtype = "auto",
    device: torch.device | str = "cpu",
    num_threads: int | None = None,
) -> Model:
    """A model from a .gguf file, or from a folder with config.json and *.safetensors.

    `device` may be "auto". `num_threads` is for passes on the CPU; None: `default_num_threads()`.
    Torch itself is left one thread where the CPU pass does the work.

    Raises:
        ModelFileError: files or tensors are missing, damaged or of the wrong shape.
        BadGGUF: the GGUF file is truncated or corrupt.
        UnsupportedModel: architecture, RoPE scaling, activation or dtype is not supported.
        BadModelConfig: the description lacks a value or holds an impossible one.
        DeviceUnavailable: there is no such device.
    """
    from llm_engine.checkpoint import open_model  # a GPU check without files needs none of it

    where = resolve_device(device)
    num_threads = num_threads or default_num_threads()
    # Torch's threads wait for each other by spinning: on busy cores that made loading ten times as
    # slow, and beside the CPU pass, which has its own threads, they have nothing to do.
    torch.set_num_threads(1)
    source, config = open_model(path)
    weights = load_weights(source, config, dtype, where)
    model = Model(config, weights, activation_dtype(dtype, where), where, num_threads)
    if not model.has_cpu_pass:
        torch.set_num_threads(num_threads)
    return model


def default_num_threads() -> int:
    """OMP_NUM_THREADS where it is set, else the cores this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else len(os.sched_getaffinity(0))
