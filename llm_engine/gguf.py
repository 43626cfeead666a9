"""Tensors of a GGUF file under Hugging Face names; blocks of the common kinds are kept quantised.

Q4_0, Q4_1 and Q8_0 become int4/int8 weights without loss, every other kind that the `gguf` package
can dequantise becomes float32. Layout: github.com/ggml-org/ggml, docs/gguf.md and ggml-common.h.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from kernels.linear import GROUP, DenseWeight, Int4Weight, Int8Weight, LinearWeight
from llm_engine.config import ModelConfig, UnsupportedModel
from llm_engine.gguf_metadata import BadGGUF, read_head

_Kind = GGMLQuantizationType
_MAX_TENSORS = 100_000
_MAX_DIMS = 4
_MAX_NAME_BYTES = 64 * 1024
_DEFAULT_ALIGNMENT = 32

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of the tensor table. `shape` is row-major: [N, K] or [H]."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # from the beginning of the file
    num_bytes: int


class GGUFTensors:
    """A GGUF file, opened: metadata, configuration, and tensors by Hugging Face name.

    Raises:
        BadGGUF: the file is truncated or corrupt.
        UnsupportedModel: its architecture or a tensor's kind is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        head = read_head(path)
        self.metadata: dict[str, Any] = head.fields
        self._bytes = np.memmap(path, np.uint8, mode="r")
        try:
            self._table = self._read_table(head.num_tensors, head.num_bytes)
        except (struct.error, UnicodeDecodeError) as cause:
            raise BadGGUF(path, f"truncated or corrupt tensor table ({cause})") from cause
        factors: tuple[float, ...] = ()
        if "rope_freqs.weight" in self._table:
            factors = tuple(self._dequantised("rope_freqs.weight").tolist())
        self.config = ModelConfig.from_gguf(self.metadata, frozenset(self._table), factors)

    def _read_table(self, num_tensors: int, offset: int) -> dict[str, _Entry]:
        if num_tensors > _MAX_TENSORS:
            raise BadGGUF(self.path, f"it claims {num_tensors} tensors")
        data = self._bytes.data
        rows: list[tuple[str, GGMLQuantizationType, tuple[int, ...], int]] = []
        for _ in range(num_tensors):
            (length,) = struct.unpack_from("<Q", data, offset)
            if length > _MAX_NAME_BYTES:
                raise BadGGUF(self.path, f"a tensor's name claims {length} bytes")
            name = bytes(data[offset + 8 : offset + 8 + length]).decode("utf-8")
            offset += 8 + length
            (num_dims,) = struct.unpack_from("<I", data, offset)
            if num_dims > _MAX_DIMS:
                raise BadGGUF(self.path, f"tensor {name} claims {num_dims} dimensions")
            *dims, kind, start = struct.unpack_from(f"<{num_dims}QIQ", data, offset + 4)
            offset += 4 + 8 * num_dims + 12
            try:
                known = _Kind(kind)
            except ValueError as cause:
                raise BadGGUF(self.path, f"tensor {name} is of unknown kind {kind}") from cause
            rows.append((name, known, tuple(reversed(dims)), start))
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise BadGGUF(self.path, f"general.alignment is {alignment!r}")
        base = -(-offset // alignment) * alignment
        return {
            name: self._entry(name, kind, shape, base + start) for name, kind, shape, start in rows
        }

    def _entry(
        self, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], offset: int
    ) -> _Entry:
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % block_size:
            raise BadGGUF(
                self.path, f"tensor {name} of shape {shape} is not whole {kind.name} blocks"
            )
        num_bytes = math.prod(shape) // block_size * block_bytes
        if offset + num_bytes > self._bytes.size:
            raise BadGGUF(
                self.path,
                f"tensor {name} ends at byte {offset + num_bytes}, "
                f"the file has {self._bytes.size} (truncated?)",
            )
        return _Entry(kind, shape, offset, num_bytes)

    def __contains__(self, name: str) -> bool:
        return _gguf_name(name) in self._table

    def shape(self, name: str) -> tuple[int, ...]:
        return self._table[_gguf_name(name)].shape

    def vector(self, name: str) -> torch.Tensor:
        """float32[...]: a norm's weight or a bias."""
        rows = self._row_order(name, self.shape(name)[0])
        values = self._dequantised(_gguf_name(name))
        return values if rows is None else values[rows]

    def linear(self, name: str) -> LinearWeight:
        """The matrix [N, K] in the file's own form where int4 or int8 weights can hold it."""
        entry = self._table[_gguf_name(name)]
        weight = self._natural(name, entry)
        rows = self._row_order(name, entry.shape[0])
        return weight if rows is None else _take_rows(weight, rows)

    def _natural(self, name: str, entry: _Entry) -> LinearWeight:
        num_rows, num_inputs = entry.shape
        if entry.kind not in (_Kind.Q4_0, _Kind.Q4_1, _Kind.Q8_0) or num_inputs % GROUP:
            return DenseWeight(self._dequantised(_gguf_name(name)))
        blocks = self._raw(entry).reshape(num_rows, num_inputs // GROUP, -1)
        scale = _half(blocks[..., :2])
        self._check_finite(name, scale)
        if entry.kind == _Kind.Q8_0:
            q = torch.from_numpy(blocks[..., 2:].view(np.int8).reshape(num_rows, num_inputs).copy())
            return Int8Weight(q, scale)
        if entry.kind == _Kind.Q4_0:
            minimum = -8 * scale  # exact in float16: a power of two
            if not bool(torch.isfinite(minimum).all()):
                scale, minimum = scale.float(), -8 * scale.float()
            packed = blocks[..., 2:]
        else:
            minimum, packed = _half(blocks[..., 2:4]), blocks[..., 4:]
            self._check_finite(name, minimum)
        return Int4Weight(torch.from_numpy(packed.reshape(num_rows, -1).copy()), scale, minimum)

    def _row_order(self, name: str, num_rows: int) -> torch.Tensor | None:
        """Llama's q/k rows are stored pairwise (2i, 2i+1); here a head is two halves again."""
        if self.config.family != "llama":
            return None
        for part, num_heads in (
            ("q_proj", self.config.num_heads),
            ("k_proj", self.config.num_kv_heads),
        ):
            if f"self_attn.{part}." in name and num_rows == num_heads * self.config.head_dim:
                order = torch.arange(num_rows).reshape(num_heads, -1, 2)
                return order.transpose(1, 2).reshape(-1)
        return None

    def _dequantised(self, gguf_name: str) -> torch.Tensor:
        entry = self._table[gguf_name]
        raw = self._raw(entry).reshape(*entry.shape[:-1], -1)
        try:
            values = dequantize(raw, entry.kind)
        except NotImplementedError as cause:
            raise UnsupportedModel(
                f"kind of tensor {gguf_name}", entry.kind.name, "F32, F16, BF16, Q*_0, Q*_1, Q*_K"
            ) from cause
        result = torch.from_numpy(np.array(values, dtype=np.float32).reshape(entry.shape))
        self._check_finite(gguf_name, result)
        return result

    def _raw(self, entry: _Entry) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.array(self._bytes[entry.offset : entry.offset + entry.num_bytes])

    def _check_finite(self, name: str, values: torch.Tensor) -> None:
        if not bool(torch.isfinite(values).all()):
            raise BadGGUF(self.path, f"tensor {name} holds values that are not finite")


def _gguf_name(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, leaf = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{leaf}"


def _half(raw: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    return torch.from_numpy(raw.copy().view(np.float16)[..., 0])


def _take_rows(weight: LinearWeight, rows: torch.Tensor) -> LinearWeight:
    if isinstance(weight, DenseWeight):
        return DenseWeight(weight.w[rows])
    if isinstance(weight, Int8Weight):
        return Int8Weight(weight.q[rows], weight.scale[rows])
    return Int4Weight(weight.packed[rows], weight.scale[rows], weight.minimum[rows])
