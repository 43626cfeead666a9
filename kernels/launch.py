"""The one place a Triton kernel is started, so that every start can be recorded instead of run.

`scripts/check_kernels.py` runs the engine's passes on tensors without storage inside
`record_launches` and compiles what they would have started: what is checked is what the engine
runs, never a second list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a kernel; `options` holds the constexprs and the compiler's options."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


_recorded: ContextVar[list[Launch] | None] = ContextVar("recorded_launches", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Start `kernel` on `grid`; a grid without programs starts nothing.

    Multiply-adds are fused unless the caller asks for `enable_fp_fusion=False` (results that must
    equal the CPU's bit for bit); Triton wants the choice named. Every kernel has a constant OVERLAP
    and hands it to `wait_for_inputs`.
    """
    options.setdefault("enable_fp_fusion", True)
    recorded = _recorded.get()
    if recorded is not None:
        recorded.append(Launch(kernel, grid, args, options | {"OVERLAP": False}))
    elif min(grid) > 0:
        if overlaps():
            options["launch_pdl"] = True
        kernel[grid](*args, OVERLAP=overlaps(), **options)


@cache
def overlaps() -> bool:
    """Whether a kernel may be started before the one in front of it has ended (from Hopper on)."""
    if triton.knobs.runtime.interpret or not torch.cuda.is_available():
        return False  # the interpreter has no such instructions
    return torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def wait_for_inputs(OVERLAP: tl.constexpr):
    """Let the next kernel in, and wait for the one in front to end.

    What precedes this in a kernel overlaps with kernels in front of it, so it may read only what no
    kernel of this package writes: weights, angles, the table of a batch. Torch's own kernels let
    nothing start before they have ended, so what they write is there.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Inside the block kernels are not started; the list receives what would have been."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)
