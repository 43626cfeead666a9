"""A model's weights handed to the CPU pass (kernels/cpu_pass.py), and back as they were."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from kernels.kv import KVArena
from kernels.panels import can_pack, pack
from kernels.segment_attention import AttentionTable
from llm_engine.config import ModelConfig
from llm_engine.weights import LayerWeights, Weights


class FastPass:
    """The weights in panels and the compiled pass over them; logits as the operators give them.

    float32 activations and float32 K/V rows only. `supports` says whether a model can have one.
    """

    def __init__(self, config: ModelConfig, weights: Weights, num_threads: int) -> None:
        from kernels.cpu_pass import CpuPass, PassLayer  # Numba takes a second to import

        self._layers = tuple(
            PassLayer(
                layer.input_norm,
                pack(layer.qkv),
                layer.q_norm,
                layer.k_norm,
                pack(layer.output),
                layer.post_norm,
                pack(layer.gate_up),
                pack(layer.down),
                window,
            )
            for layer, window in zip(weights.layers, config.windows, strict=True)
        )
        self._final_norm = weights.final_norm
        self._embedding = pack(weights.embedding)
        is_tied = weights.head is weights.embedding
        self._head = self._embedding if is_tied else pack(weights.head)
        self._run = CpuPass(
            self._layers,
            self._final_norm,
            self._head,
            config.num_heads,
            config.head_dim,
            config.rms_norm_eps,
            num_threads,
        )

    @staticmethod
    def supports(weights: Weights, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether every matrix has a panel form, on the CPU, with float32 activations."""
        matrices = [weights.embedding, weights.head]
        for layer in weights.layers:
            matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
        is_float32_cpu = device.type == "cpu" and dtype == torch.float32
        return is_float32_cpu and find_spec("numba") is not None and all(map(can_pack, matrices))

    def forward(
        self,
        token_ids: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        rows: torch.Tensor,
        table: AttentionTable,
        wanted: torch.Tensor,
        arena: KVArena,
        may_go_on: Callable[[], bool] | None = None,
    ) -> torch.Tensor:
        """logits[N, V] float32; as `CpuPass.__call__` from token_ids[T]."""
        embedded = self._embedding.rows(token_ids)
        return self._run(embedded, cos, sin, rows, table, wanted, arena, may_go_on)

    @property
    def num_weight_bytes(self) -> int:
        matrices = [matrix for layer in self._layers for matrix in layer.matrices]
        return sum(matrix.data.numel() for matrix in (*matrices, self._head))

    def unpacked(self) -> Weights:
        """The weights as they were before packing, bit for bit."""
        layers = tuple(
            LayerWeights(
                layer.input_norm,
                layer.qkv.unpack(),
                layer.q_norm,
                layer.k_norm,
                layer.output.unpack(),
                layer.post_norm,
                layer.gate_up.unpack(),
                layer.down.unpack(),
            )
            for layer in self._layers
        )
        embedding = self._embedding.unpack()
        head = embedding if self._head is self._embedding else self._head.unpack()
        return Weights(embedding, layers, self._final_norm, head)
