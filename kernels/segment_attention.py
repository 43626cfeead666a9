"""Attention over a table of extents: prefill chunks, verify chunks and single tokens mixed.

A token attends the rows of its own sequence whose position is not greater than its own and, with a
window, greater than its own minus the window. Positions are compared, never row numbers, so that
extents may lie anywhere and in any order. Legend: T tokens, S sequences, E extents, R arena rows,
Rs rows that sequence s reads, Hq/Hkv heads, G = Hq/Hkv, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from kernels.dispatch import backend_for
from kernels.errors import KernelArgumentError, require
from kernels.kv import LayerKV, dequantise_rows


class Extent(Protocol):
    """A run of `num_rows` readable rows at consecutive positions (llm_engine.batch.ExtentView)."""

    @property
    def first_row(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def first_position(self) -> int: ...


@dataclass(frozen=True)
class AttentionTable:
    """Who reads what, built once per batch and used by every layer. All tensors int64."""

    extents: torch.Tensor  # [E, 3]: first_row, num_rows, first_position
    extent_start: torch.Tensor  # [S+1]: extents of sequence s are extent_start[s]:extent_start[s+1]
    query_start: torch.Tensor  # [S+1]: tokens of sequence s are query_start[s]:query_start[s+1]
    positions: torch.Tensor  # [T]

    @classmethod
    def build(
        cls,
        extents: Sequence[Sequence[Extent]],
        query_start: Sequence[int],
        positions: torch.Tensor,
    ) -> AttentionTable:
        """The table of a batch, on the device of `positions`.

        Raises:
            KernelArgumentError: the parts do not describe the same sequences and tokens.
        """
        require(
            len(query_start) == len(extents) + 1,
            f"{len(extents)} sequences of extents but query_start has {len(query_start)} entries",
        )
        require(
            query_start[0] == 0 and query_start[-1] == positions.shape[0],
            f"query_start spans {query_start[0]}..{query_start[-1]}, "
            f"the batch has {positions.shape[0]} tokens",
        )
        flat = [
            (extent.first_row, extent.num_rows, extent.first_position)
            for sequence in extents
            for extent in sequence
        ]
        starts = [0]
        for sequence in extents:
            starts.append(starts[-1] + len(sequence))
        device = positions.device
        return cls(
            torch.tensor(flat, dtype=torch.int64, device=device).reshape(-1, 3),
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.tensor(list(query_start), dtype=torch.int64, device=device),
            positions,
        )

    @property
    def num_sequences(self) -> int:
        return int(self.query_start.shape[0]) - 1

    @cached_property
    def readers(self) -> tuple[SequenceReader, ...]:
        """Per sequence with tokens: which tokens, rows and positions (for the torch reference)."""
        query_start, extent_start = self.query_start.tolist(), self.extent_start.tolist()
        extents = self.extents.tolist()
        readers = []
        for sequence in range(self.num_sequences):
            tokens = slice(query_start[sequence], query_start[sequence + 1])
            if tokens.start == tokens.stop:
                continue
            own = extents[extent_start[sequence] : extent_start[sequence + 1]]
            readers.append(SequenceReader(tokens, own, self.positions[tokens]))
        return tuple(readers)


class SequenceReader:
    """One sequence's tokens and the rows they may read, for the torch reference."""

    def __init__(self, tokens: slice, extents: list[list[int]], positions: torch.Tensor) -> None:
        self.tokens = tokens
        self._positions = positions  # [Ts]
        device = positions.device
        # One extent is a slice of the arena: no copy. Several are gathered.
        self.rows: slice | torch.Tensor  # Rs rows
        if len(extents) == 1:
            first_row, num_rows, first_position = extents[0]
            self.rows = slice(first_row, first_row + num_rows)
            self._row_positions = first_position + torch.arange(num_rows, device=device)
        else:
            self.rows = _concatenated(extents, 0, device)
            self._row_positions = _concatenated(extents, 2, device)  # [Rs]
        self._masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None) -> torch.Tensor:
        """[Ts, Rs] bool: True where the token attends the row."""
        if window not in self._masks:
            own, row = self._positions[:, None], self._row_positions[None, :]
            visible = row <= own
            if window is not None:
                visible &= row > own - window
            self._masks[window] = visible
        return self._masks[window]


def _concatenated(extents: list[list[int]], column: int, device: torch.device) -> torch.Tensor:
    """The runs `extent[column] .. + num_rows` of all extents, one after the other."""
    runs = [
        torch.arange(extent[column], extent[column] + extent[1], device=device)
        for extent in extents
    ]
    return torch.cat(runs) if runs else torch.empty(0, dtype=torch.int64, device=device)


def segment_attention_reference(
    q: torch.Tensor, cache: LayerKV, table: AttentionTable, scale: float, window: int | None
) -> torch.Tensor:
    """Torch reference: scores, softmax and sums in float32, one sequence after the other."""
    num_kv_heads, head_dim = cache.keys.shape[1:]
    out = torch.zeros_like(q)
    for reader in table.readers:
        keys = _rows(cache.keys, cache.key_scales, reader.rows)  # [Rs, Hkv, D]
        values = _rows(cache.values, cache.value_scales, reader.rows)
        own = q[reader.tokens].float()  # [Ts, Hq, D]
        grouped = own.reshape(own.shape[0], num_kv_heads, -1, head_dim)  # [Ts, Hkv, G, D]
        scores = torch.einsum("thgd,rhd->hgtr", grouped, keys) * scale
        visible = reader.mask(window)
        scores = scores.masked_fill(~visible, -torch.inf)
        # A token that sees no row gets zeros: its maximum is -inf, its weights are set to 0.
        weights = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0)
        mixed = torch.einsum("hgtr,rhd->thgd", weights, values)
        out[reader.tokens] = mixed.reshape(own.shape).to(q.dtype)
    return out


def _rows(
    data: torch.Tensor, scales: torch.Tensor | None, rows: slice | torch.Tensor
) -> torch.Tensor:
    """float32[Rs, Hkv, D] of the chosen rows."""
    return data[rows].float() if scales is None else dequantise_rows(data[rows], scales[rows])


def segment_attention(
    q: torch.Tensor, cache: LayerKV, table: AttentionTable, scale: float, window: int | None = None
) -> torch.Tensor:
    """Rotated q[T,Hq,D] attends the rows of `table` in `cache` -> out[T,Hq,D].

    Rows outside a token's view never count, whatever finite values they hold. A token that sees no
    row gets zeros. `scale` multiplies q.k; `window` is the number of positions seen, the token's
    own included.

    Raises:
        KernelArgumentError: shapes do not agree, or the window is not positive.
    """
    require(q.dim() == 3, f"q must be [T, Hq, D], got shape {tuple(q.shape)}")
    num_kv_heads, head_dim = cache.keys.shape[1:]
    require(
        q.shape[2] == head_dim and q.shape[1] % num_kv_heads == 0,
        f"q {tuple(q.shape)} does not fit {num_kv_heads} K/V heads of {head_dim} elements",
    )
    require(
        q.shape[0] == table.positions.shape[0],
        f"q has {q.shape[0]} tokens, the table {table.positions.shape[0]}",
    )
    require(window is None or window > 0, f"window must be positive or None, got {window}")
    if backend_for(q) == "torch":
        return segment_attention_reference(q, cache, table, scale, window)
    raise KernelArgumentError(f"segment_attention has no kernel for {q.device}")
