"""Repairs to Triton 3.7's interpreter, which has no bfloat16 arithmetic of its own.

It keeps bfloat16 as 16-bit integers: `tl.dot` multiplies those integers, and rounding float32 to
bfloat16 cuts the low bits off. On a GPU the product is exact in float32 and rounding is to nearest,
ties to even; the same is put in place here, so that kernels need no path of their own for the
interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def repair_interpreter() -> None:
    """Give the interpreter bfloat16. Repeating it changes nothing."""
    if getattr(InterpreterBuilder, "has_bfloat16", False):
        return
    original_cast = InterpreterBuilder.cast_impl

    def cast(self: Any, source: Any, target_type: Any) -> Any:
        target = target_type.scalar
        if source.dtype.scalar == tl.bfloat16 and target != tl.bfloat16:
            wide = TensorHandle(_widened(source), tl.float32)
            return wide if target == tl.float32 else original_cast(self, wide, target_type)
        if target == tl.bfloat16 and source.dtype.scalar != tl.bfloat16:
            wide = original_cast(self, source, tl.float32)
            return TensorHandle(_rounded_to_bfloat16(wide.data), tl.bfloat16)
        return original_cast(self, source, target_type)

    def dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, imprecise: Any) -> Any:
        product = np.matmul(_widened(a), _widened(b), dtype=acc.data.dtype)
        return TensorHandle(product + acc.data, acc.dtype.scalar)

    InterpreterBuilder.cast_impl = cast
    InterpreterBuilder.create_dot = dot
    InterpreterBuilder.has_bfloat16 = True


def _widened(handle: Any) -> np.ndarray:
    """float32 (or wider) values of a handle's data."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32) if handle.data.dtype == np.float16 else handle.data


def _rounded_to_bfloat16(data: np.ndarray) -> np.ndarray:
    rounded = torch.from_numpy(np.ascontiguousarray(data)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16).reshape(data.shape)
