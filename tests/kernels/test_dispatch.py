"""Which implementation runs."""

import pytest
import torch

from kernels.dispatch import backend_for, use_backend
from kernels.errors import KernelArgumentError


def test_cpu_tensors_run_the_torch_reference():
    assert backend_for(torch.zeros(1)) == "torch"


def test_a_forced_backend_ends_with_its_block():
    with use_backend("triton"):
        assert backend_for(torch.zeros(1)) == "triton"
        with use_backend("torch"):
            assert backend_for(torch.zeros(1)) == "torch"
        assert backend_for(torch.zeros(1)) == "triton"
    assert backend_for(torch.zeros(1)) == "torch"


def test_a_backend_that_does_not_exist_is_refused_by_name():
    with pytest.raises(KernelArgumentError, match="'cuda-graph'"), use_backend("cuda-graph"):
        pass
