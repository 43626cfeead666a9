"""Which implementation of an op runs: decided by where the tensors live, overridable for tests.

CUDA tensors run the Triton kernels, all others the torch references. `use_backend("triton")` forces
the kernels (in the Triton interpreter on a machine without a GPU), `use_backend("torch")` the
references.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch

from kernels.errors import KernelArgumentError

Backend = Literal["torch", "triton"]
BACKENDS: tuple[Backend, ...] = ("torch", "triton")

_forced: ContextVar[Backend | None] = ContextVar("kernel_backend", default=None)


def backend_for(tensor: torch.Tensor) -> Backend:
    """The implementation that works on `tensor`."""
    forced = _forced.get()
    if forced is not None:
        return forced
    return "triton" if tensor.is_cuda else "torch"


def forced_backend() -> Backend | None:
    """The implementation that `use_backend` asks for, if it does."""
    return _forced.get()


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Run every op inside the block with implementation `name`, whatever the device.

    Raises:
        KernelArgumentError: `name` is not one of `BACKENDS`.
    """
    if name not in BACKENDS:
        raise KernelArgumentError(f"kernel backend {name!r} is not one of {', '.join(BACKENDS)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)
