"""The vector functions against float64."""

import numpy as np
import pytest
from numba import njit

from kernels.cpu_ir import exp_lanes, swiglu_lanes


@njit
def exp_all(x, shift):
    for place in range(0, x.shape[0], 16):
        exp_lanes(x.ctypes.data + place * 4, shift)


@njit
def swiglu_all(gate, up, out):
    for place in range(0, gate.shape[0], 16):
        offset = place * 4
        swiglu_lanes(gate.ctypes.data + offset, up.ctypes.data + offset, out.ctypes.data + offset)


@pytest.mark.parametrize("shift", [0.0, 3.5])
def test_exp_is_right_to_two_ulps(shift):
    x = np.linspace(-80, 0, 16 * 500, dtype=np.float32) + np.float32(shift)
    expected = np.exp((x - np.float32(shift)).astype(np.float64))
    exp_all(x, np.float32(shift))
    np.testing.assert_allclose(x, expected, rtol=2.5e-7)


def test_exp_of_zero_is_one_and_of_minus_infinity_next_to_nothing():
    x = np.array([0.0, -np.inf] * 8, dtype=np.float32)
    exp_all(x, np.float32(0))
    assert (x[0::2] == 1).all() and (x[1::2] < 1e-37).all() and np.isfinite(x).all()


def test_swiglu_matches_its_formula_from_one_end_to_the_other():
    gate = np.linspace(-100, 100, 16 * 100, dtype=np.float32)
    up = np.linspace(3, -2, 16 * 100, dtype=np.float32)
    out = np.full_like(gate, np.nan)
    swiglu_all(gate, up, out)
    wide = gate.astype(np.float64)
    expected = wide / (1 + np.exp(-wide)) * up
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-33)
