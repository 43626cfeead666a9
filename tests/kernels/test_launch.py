"""Starting kernels, and recording what would have been started."""

from __future__ import annotations

import torch

from kernels.dispatch import use_backend
from kernels.launch import record_launches
from kernels.swiglu import swiglu


def test_recording_names_the_start_and_runs_nothing() -> None:
    gate_up = torch.empty(3, 2 * 1030, device="meta")
    with use_backend("triton"), record_launches() as launches:
        out = swiglu(gate_up)
    assert out.shape == (3, 1030)
    (start,) = launches
    assert start.grid == (3, 2)
    assert start.args[0] is gate_up
    assert start.options["BLOCK"] == 1024
    assert start.options["enable_fp_fusion"] is True
    assert start.options["OVERLAP"] is False  # whether it does is the device's matter


def test_recording_ends_with_its_block() -> None:
    with use_backend("triton"):
        with record_launches() as launches:
            swiglu(torch.ones(1, 4))
        assert torch.equal(swiglu(torch.zeros(1, 4)), torch.zeros(1, 2))
    assert len(launches) == 1


def test_a_grid_without_programs_starts_nothing() -> None:
    with use_backend("triton"):
        assert swiglu(torch.ones(0, 4)).shape == (0, 2)
