"""The CPU pass from Python: weights and buffers laid out for kernels/cpu_kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels import cpu_kernels
from kernels.errors import PassAbandoned, require
from kernels.kv import KVArena
from kernels.linear import GROUP
from kernels.panels import LANES, PanelWeight
from kernels.segment_attention import AttentionTable
from kernels.thread_team import team_of

Array = np.ndarray[Any, Any]
LAYERS_BETWEEN_ASKING = 2  # about 1 ms for one token of a small model


@dataclass(frozen=True, slots=True)
class PassLayer:
    """What one layer computes with. Norm weights are float32."""

    input_norm: torch.Tensor  # [H]
    qkv: PanelWeight
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    output: PanelWeight
    post_norm: torch.Tensor  # [H]
    gate_up: PanelWeight
    down: PanelWeight
    window: int | None

    @property
    def matrices(self) -> tuple[PanelWeight, ...]:
        return self.qkv, self.output, self.gate_up, self.down


class CpuPass:
    """All layers and the head of a decoder, run by a team of threads.

    Every token's result depends on its own sequence alone, bit for bit: neither the other tokens of
    the batch nor the number of threads change it. One call at a time; the buffers are this object's
    own.
    """

    def __init__(
        self,
        layers: Sequence[PassLayer],
        final_norm: torch.Tensor,
        head: PanelWeight,
        num_heads: int,
        head_dim: int,
        eps: float,
        num_threads: int,
    ) -> None:
        matrices = [matrix for layer in layers for matrix in layer.matrices] + [head]
        self._matrices = matrices  # the table below holds addresses of their data
        self._team = team_of(num_threads)
        self._num_heads = num_heads
        self._eps, self._scale = np.float32(eps), np.float32(head_dim**-0.5)
        self._widths = [matrix.num_panels * LANES for matrix in matrices[:4]]
        self._hidden_size = layers[0].qkv.num_inputs
        self._query_size, self._inner_size = layers[0].output.num_inputs, layers[0].down.num_inputs
        self._head_width = head.num_panels * LANES
        self._num_outputs = head.num_outputs
        self._table, self._biases = _table(matrices)
        norms = [norm for layer in layers for norm in (layer.input_norm, layer.post_norm)]
        self._norms = torch.stack([*norms, final_norm]).float().numpy()
        self._head_norms = _head_norms(layers, head_dim)
        self._windows = np.array([layer.window or 0 for layer in layers], dtype=np.int64)
        self._num_phases = len(layers) * cpu_kernels.PHASES_PER_LAYER + 1
        longest = max(matrix.num_inputs for matrix in matrices)
        self._tile = np.zeros((num_threads, longest * LANES), dtype=np.float32)
        self._head_rows = np.zeros((num_threads, 2, head_dim), dtype=np.float32)
        self._scores = np.zeros((num_threads, 0), dtype=np.float32)
        self._make_room(1)

    def _make_room(self, num_tokens: int) -> None:
        threads, hidden = self._team.num_threads, self._hidden_size
        self._room = num_tokens
        self._normed = np.zeros((threads, num_tokens, hidden), dtype=np.float32)
        self._both = np.zeros((threads, num_tokens, 2 * LANES), dtype=np.float32)
        self._qkv = np.zeros((num_tokens, self._widths[0]), dtype=np.float32)
        self._projected = np.zeros((num_tokens, self._widths[1]), dtype=np.float32)
        self._attended = np.zeros((num_tokens, self._query_size), dtype=np.float32)
        self._gated = np.zeros((num_tokens, self._inner_size), dtype=np.float32)

    def __call__(
        self,
        embedded: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        rows: torch.Tensor,
        table: AttentionTable,
        wanted: torch.Tensor,
        arena: KVArena,
        may_go_on: Callable[[], bool] | None = None,
    ) -> torch.Tensor:
        """embedded[M,H] float32, cos/sin[M,D/2], rows[M], wanted[N] -> logits[N,V] float32.

        K/V of every token is written to `arena`, which must be float32. `may_go_on` is asked every
        few layers.

        Raises:
            PassAbandoned: it said no; the tokens' rows hold nothing of use.
            KernelArgumentError: the arena is not float32, or a row or token is not there.
        """
        require(arena.dtype == torch.float32, f"the CPU pass needs float32 rows, got {arena.dtype}")
        # The compiled code checks nothing.
        _require_within("rows", rows, arena.num_rows)
        _require_within("wanted", wanted, embedded.shape[0])
        _require_within("extents' first rows", table.extents[:, 0], arena.num_rows)
        _require_within("extents' ends", table.extents[:, :2].sum(dim=1), arena.num_rows + 1)
        num_tokens, num_wanted = embedded.shape[0], wanted.shape[0]
        if (num_rows := max(num_tokens, num_wanted)) > self._room:
            self._make_room(max(num_rows, 2 * self._room))
        if (num_rows := _most_rows(table) + LANES) > self._scores.shape[1]:
            self._scores = np.zeros((self._team.num_threads, 2 * num_rows), dtype=np.float32)
        residual = embedded.numpy().copy()
        logits = torch.empty(num_wanted, self._head_width)
        arguments = (
            np.zeros(2 * self._num_phases, dtype=np.int64),
            self._num_heads,
            self._eps,
            self._scale,
            self._table,
            self._norms,
            self._head_norms,
            self._biases,
            self._windows,
            cos.numpy(),
            sin.numpy(),
            rows.numpy(),
            table.positions.numpy(),
            _sequence_of(table),
            table.extent_start.numpy(),
            table.extents.numpy(),
            arena.keys.numpy(),
            arena.values.numpy(),
            wanted.numpy(),
            self._normed,
            self._both,
            self._tile,
            self._scores,
            self._head_rows,
            residual,
            self._qkv,
            self._attended,
            self._projected,
            self._gated,
            logits.numpy(),
        )
        num_layers = len(self._windows)
        stride = num_layers if may_go_on is None else LAYERS_BETWEEN_ASKING
        for first in range(0, num_layers, stride):
            if first and may_go_on is not None and not may_go_on():
                raise PassAbandoned
            self._run_layers(first, min(first + stride, num_layers), arguments)
        return logits[:, : self._num_outputs]

    def _run_layers(self, first: int, end: int, arguments: tuple[Any, ...]) -> None:
        self._team.run(lambda thread: cpu_kernels.run_pass(thread, first, end, *arguments))


def _require_within(name: str, index: torch.Tensor, end: int) -> None:
    if index.numel():
        low, high = (int(bound) for bound in index.aminmax())
        require(low >= 0 and high < end, f"{name} span {low}..{high}, must lie in 0..{end - 1}")


def _table(matrices: Sequence[PanelWeight]) -> tuple[Array, Array]:
    """The table of matrices (columns as in cpu_kernels) and all their biases in one array."""
    rows, biases, num_biases = [], [np.zeros(0, dtype=np.float32)], 0
    for matrix in matrices:
        panels, offset = matrix.num_panels, -1
        if matrix.bias is not None:
            padded = np.zeros(panels * LANES, dtype=np.float32)
            padded[: matrix.num_outputs] = matrix.bias.float().numpy()
            offset, num_biases = num_biases, num_biases + len(padded)
            biases.append(padded)
        groups = matrix.num_inputs // GROUP
        rows.append([matrix.kind, groups, panels, matrix.data.data_ptr(), offset])
    return np.array(rows, dtype=np.int64), np.concatenate(biases)


def _head_norms(layers: Sequence[PassLayer], head_dim: int) -> Array:
    """[L, 2, D]: weights for q and k; [L, 0, D] without."""
    pairs = [
        torch.stack((layer.q_norm, layer.k_norm)).float()
        for layer in layers
        if layer.q_norm is not None and layer.k_norm is not None
    ]
    if not pairs:
        return np.zeros((len(layers), 0, head_dim), dtype=np.float32)
    return np.ascontiguousarray(torch.stack(pairs).numpy())


def _most_rows(table: AttentionTable) -> int:
    """The rows of the sequence that reads the most."""
    counts, starts = table.extents[:, 1].tolist(), table.extent_start.tolist()
    pairs = zip(starts, starts[1:], strict=False)
    return max((sum(counts[first:last]) for first, last in pairs), default=0)


def _sequence_of(table: AttentionTable) -> Array:
    starts = table.query_start.numpy()
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))
