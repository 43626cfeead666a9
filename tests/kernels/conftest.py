"""Triton kernels run in the interpreter (tests/conftest.py chooses it), on CPU tensors."""

from __future__ import annotations

import pytest
import torch
from triton import knobs

from tests.kernels.interpreter import repair_interpreter


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    assert knobs.runtime.interpret, "triton was imported before TRITON_INTERPRET was set"
    repair_interpreter()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
