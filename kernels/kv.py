"""K/V memory: one arena of rows per layer, rows handed out by the engine in extents.

Legend: R rows of the arena, Hkv key/value heads, D head dimension. A row is finite from the start
(arenas are zero-filled), because a masked row is multiplied by weight 0 and 0 x NaN is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.errors import require

FLOAT_KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INT8_LEVELS = 127  # symmetric: -127 .. 127


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's rows. Of int8 rows, element d is worth `keys[r, h, d] * key_scales[r, h]`.

    Raises:
        KernelArgumentError: the tensors are not of one shape, or scales and dtype do not agree.
    """

    keys: torch.Tensor  # [R, Hkv, D]
    values: torch.Tensor  # [R, Hkv, D]
    key_scales: torch.Tensor | None = None  # [R, Hkv] float32, int8 rows only
    value_scales: torch.Tensor | None = None  # [R, Hkv] float32, int8 rows only

    def __post_init__(self) -> None:
        keys, values = self.keys, self.values
        require(
            keys.dim() == 3 and values.shape == keys.shape and values.dtype == keys.dtype,
            f"keys {tuple(keys.shape)} {keys.dtype} and values {tuple(values.shape)} "
            f"{values.dtype} must both be [R, Hkv, D] of one dtype",
        )
        for name, scales in (("key", self.key_scales), ("value", self.value_scales)):
            require(
                (scales is not None) == (keys.dtype == torch.int8),
                f"rows of {keys.dtype} {'need' if scales is None else 'have no'} {name} scales",
            )
            require(
                scales is None
                or (scales.shape == keys.shape[:2] and scales.dtype == torch.float32),
                f"{name} scales must be float32 {tuple(keys.shape[:2])}",
            )

    @property
    def is_quantised(self) -> bool:
        return self.key_scales is not None


class KVArena:
    """`num_layers` zero-filled `LayerKV` of equal shape.

    Raises:
        KernelArgumentError: a size is not positive or `dtype` is neither a float type nor int8.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = (num_layers, num_rows, num_kv_heads, head_dim)
        require(min(sizes) > 0, f"KV arena sizes must be positive, got {sizes}")
        require(
            dtype in (*FLOAT_KV_DTYPES, torch.int8),
            f"KV dtype must be float32, bfloat16, float16 or int8, got {dtype}",
        )
        self.num_rows = num_rows
        self.dtype = dtype
        # One tensor for all layers: the CPU pass walks layers by one stride.
        shape = (num_layers, num_rows, num_kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # [L, R, Hkv, D]
        self.values = torch.zeros(shape, dtype=dtype, device=device)  # [L, R, Hkv, D]
        self.key_scales: torch.Tensor | None = None
        self.value_scales: torch.Tensor | None = None
        if dtype == torch.int8:
            self.key_scales = torch.zeros(shape[:3], device=device)  # [L, R, Hkv]
            self.value_scales = torch.zeros(shape[:3], device=device)
        self.layers = tuple(self._layer(index) for index in range(num_layers))

    def _layer(self, index: int) -> LayerKV:
        return LayerKV(
            self.keys[index],
            self.values[index],
            None if self.key_scales is None else self.key_scales[index],
            None if self.value_scales is None else self.value_scales[index],
        )

    @property
    def num_bytes(self) -> int:
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x[..., D] -> (int8[..., D], scale[...] float32), symmetric, nearest, ties to even.

    scale = max|x| / 127; a row of zeros gets scale 0.
    """
    x = x.float()
    scale = x.abs().amax(dim=-1) / INT8_LEVELS
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (x / divisor[..., None]).round().to(torch.int8), scale


def dequantise_rows(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `quantise_rows`: float32[..., D]."""
    return q.float() * scale[..., None]
