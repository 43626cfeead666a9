"""Errors of the kernel layer."""

import pytest

from kernels.errors import KernelArgumentError, require


def test_require_raises_only_where_the_condition_fails():
    require(True, "unused")
    with pytest.raises(KernelArgumentError, match="K is 7"):
        require(False, "K is 7")


def test_kernel_errors_are_value_errors():
    assert issubclass(KernelArgumentError, ValueError)
