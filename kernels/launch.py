"""The one place a Triton kernel is started, so that every start can be recorded instead of run.

`scripts/check_kernels.py` calls the checked wrappers on tensors without storage inside
`record_launches` and compiles what they would have started: what is checked is what the engine
runs, never a second list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


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
    equal the CPU's bit for bit); Triton wants the choice named.
    """
    options.setdefault("enable_fp_fusion", True)
    recorded = _recorded.get()
    if recorded is not None:
        recorded.append(Launch(kernel, grid, args, options))
    elif min(grid) > 0:
        kernel[grid](*args, **options)


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Inside the block kernels are not started; the list receives what would have been."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)
