"""Matrix product with weights kept dense, as int8 or as int4 (activations stay float).

Quantised weights come in groups of 32 along K, each with its own scale (and minimum), so that
GGUF's Q8_0, Q4_0 and Q4_1 blocks are held without loss. Legend: T tokens, N outputs, K inputs, G =
K/32 groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.dispatch import backend_for
from kernels.errors import require
from kernels.linear_kernel import Stored, multiply, takes_dense

GROUP = 32
INT4_LEVELS = 15  # q in 0..15
INT8_LEVELS = 127  # q in -127..127 (Q8_0 files may hold -128)


@dataclass(frozen=True, slots=True)
class DenseWeight:
    w: torch.Tensor  # [N, K] float32, bfloat16 or float16
    bias: torch.Tensor | None = None  # [N], dtype of the activations

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.w.shape[0]), int(self.w.shape[1])

    @property
    def num_bytes(self) -> int:
        return self.w.nbytes

    def dense(self) -> torch.Tensor:
        """float32[N, K]: the effective weights."""
        return self.w.float()

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """float32[len(index), K]: some rows of the effective weights (embedding lookup)."""
        return torch.nn.functional.embedding(index, self.w).float()  # faster than an index on GPUs


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """w[n, k] = q[n, k] * scale[n, k // 32].

    Raises:
        KernelArgumentError: the tensors are not as below, or not contiguous.
    """

    q: torch.Tensor  # [N, K] int8
    scale: torch.Tensor  # [N, G] float16 or float32
    bias: torch.Tensor | None = None  # [N]

    def __post_init__(self) -> None:
        _require_stored("q", self.q, torch.int8, GROUP)
        _require_scales(self.q.shape[0], self.shape[1], scale=self.scale)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.q.shape[0]), int(self.q.shape[1])

    @property
    def num_bytes(self) -> int:
        return self.q.nbytes + self.scale.nbytes

    def dense(self) -> torch.Tensor:
        return _from_int8(self.q, self.scale)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return _from_int8(self.q[index], self.scale[index])


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w[n, k] = q[n, k] * scale[n, k // 32] + minimum[n, k // 32], q in 0..15.

    Byte j (0..15) of a group holds q of element j in its low and of element j + 16 in its high
    half: packed[n, g * 16 + j] = q[n, g * 32 + j] | q[n, g * 32 + j + 16] << 4 (the order of GGUF's
    Q4_1).

    Raises:
        KernelArgumentError: the tensors are not as below, or not contiguous.
    """

    packed: torch.Tensor  # [N, K/2] uint8
    scale: torch.Tensor  # [N, G] float16 or float32
    minimum: torch.Tensor  # [N, G], dtype of scale
    bias: torch.Tensor | None = None  # [N]

    def __post_init__(self) -> None:
        _require_stored("packed", self.packed, torch.uint8, GROUP // 2)
        _require_scales(self.packed.shape[0], self.shape[1], scale=self.scale, minimum=self.minimum)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.packed.shape[0]), int(self.packed.shape[1]) * 2

    @property
    def num_bytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes + self.minimum.nbytes

    def dense(self) -> torch.Tensor:
        return _from_int4(self.packed, self.scale, self.minimum)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return _from_int4(self.packed[index], self.scale[index], self.minimum[index])


def _require_stored(name: str, data: torch.Tensor, dtype: torch.dtype, group_bytes: int) -> None:
    require(
        data.dim() == 2
        and data.shape[1] % group_bytes == 0
        and data.dtype == dtype
        and data.is_contiguous(),
        f"{name} must be contiguous {dtype} [N, a multiple of {group_bytes}], "
        f"got {data.dtype} {tuple(data.shape)}",
    )


def _require_scales(num_outputs: int, num_inputs: int, **scales: torch.Tensor) -> None:
    shape = (num_outputs, num_inputs // GROUP)
    for name, tensor in scales.items():
        require(
            tensor.shape == shape
            and tensor.dtype in (torch.float16, torch.float32)
            and tensor.is_contiguous(),
            f"{name} must be contiguous float16 or float32 {shape}, "
            f"got {tensor.dtype} {tuple(tensor.shape)}",
        )


LinearWeight = DenseWeight | Int8Weight | Int4Weight


def quantise_int8(w: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Weight:
    """w[N,K] float -> int8 by groups of 32: scale = max|w| / 127 in float16, q to the nearest.

    Raises:
        KernelArgumentError: K is not a multiple of 32, or a weight is not finite.
    """
    groups = _groups(w)  # [N, G, 32]
    scale = _as_float16(groups.abs().amax(dim=-1) / INT8_LEVELS)
    q = (groups / _divisor(scale)[..., None]).round().clamp(-INT8_LEVELS, INT8_LEVELS)
    return Int8Weight(q.to(torch.int8).reshape(w.shape), scale, bias)


def quantise_int4(w: torch.Tensor, bias: torch.Tensor | None = None) -> Int4Weight:
    """w[N,K] float -> int4 by groups of 32: 16 levels from the group's minimum to its maximum.

    Raises:
        KernelArgumentError: K is not a multiple of 32, or a weight is not finite.
    """
    groups = _groups(w)
    low, high = groups.aminmax(dim=-1)
    scale, minimum = _as_float16((high - low) / INT4_LEVELS), _as_float16(low)
    if scale.dtype != minimum.dtype:
        scale, minimum = scale.float(), minimum.float()
    q = ((groups - minimum.float()[..., None]) / _divisor(scale)[..., None]).round()
    q = q.clamp(0, INT4_LEVELS).to(torch.uint8)
    packed = q[..., :16] | (q[..., 16:] << 4)
    return Int4Weight(packed.reshape(w.shape[0], -1), scale, minimum, bias)


def _groups(w: torch.Tensor) -> torch.Tensor:
    require(
        w.dim() == 2 and w.shape[1] % GROUP == 0,
        f"quantised weights need [N, K] with K a multiple of {GROUP}, got {tuple(w.shape)}",
    )
    require(bool(torch.isfinite(w).all()), "weights to quantise must be finite")
    return w.float().reshape(w.shape[0], -1, GROUP)


def _as_float16(x: torch.Tensor) -> torch.Tensor:
    """x in float16 where its range allows, else as it is."""
    half = x.half()
    return half if bool(torch.isfinite(half).all()) else x


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    wide = scale.float()
    return torch.where(wide > 0, wide, torch.ones_like(wide))


def _from_int8(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    groups = q.reshape(*q.shape[:-1], -1, GROUP).float()
    return (groups * scale.float()[..., None]).reshape(q.shape)


def _from_int4(packed: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    groups = packed.reshape(*packed.shape[:-1], -1, GROUP // 2)
    q = torch.cat((groups & 15, groups >> 4), dim=-1).float()
    w = q * scale.float()[..., None] + minimum.float()[..., None]
    return w.reshape(*packed.shape[:-1], -1)


def linear_reference(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Torch reference: the product with the effective weights in x's dtype."""
    w = weight.w if isinstance(weight, DenseWeight) else weight.dense()
    return torch.nn.functional.linear(x, w.to(x.dtype), weight.bias)


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """x[T,K] times the weight's transpose, plus its bias -> [T,N] in x's dtype.

    Raises:
        KernelArgumentError: shapes or dtypes do not agree.
    """
    num_outputs, num_inputs = weight.shape
    require(
        x.dim() == 2 and x.shape[1] == num_inputs,
        f"x must be [T, {num_inputs}] for a weight of {weight.shape}, got {tuple(x.shape)}",
    )
    require(x.dtype.is_floating_point, f"x must be floating point, got {x.dtype}")
    bias = weight.bias
    require(
        bias is None or (bias.shape == (num_outputs,) and bias.dtype == x.dtype),
        f"bias must be {x.dtype} ({num_outputs},)",
    )
    if backend_for(x) == "torch":
        return linear_reference(x, weight)
    if isinstance(weight, Int8Weight):
        return multiply(x, Stored(8, weight.q, weight.scale), bias)
    if isinstance(weight, Int4Weight):
        return multiply(x, Stored(4, weight.packed, weight.scale, weight.minimum), bias)
    if takes_dense(x, weight.w):
        return multiply(x, Stored(0, weight.w), bias)
    return linear_reference(x, weight)  # on a GPU torch calls cuBLAS
