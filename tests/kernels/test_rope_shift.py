"""Keys moved along in place: against keys written anew, and the Triton form against torch's."""

from __future__ import annotations

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.kv import KVArena, dequantise_rows, quantise_rows
from kernels.rope import rotate
from kernels.rope_shift import rope_shift
from tests.kernels.checks import check_rope_shift, check_shift_beyond_int32

FREQUENCIES = 10_000.0 ** -torch.arange(0, 1, 1 / 16)  # [D/2], D = 32


def keys_at(first_position: int, raw: torch.Tensor) -> torch.Tensor:
    """raw[n, Hkv, D] rotated to consecutive positions."""
    positions = first_position + torch.arange(raw.shape[0])
    angles = positions[:, None] * FREQUENCIES
    return rotate(raw, angles.cos(), angles.sin())


@pytest.mark.parametrize("shift", [0, 5, -7])
def test_shifted_keys_equal_keys_written_at_the_new_positions(shift: int) -> None:
    raw = torch.randn(6, 2, 32)
    arena = KVArena(1, 10, 2, 32)
    arena.keys[0, 2:8] = keys_at(20, raw)
    rope_shift(arena, 2, 6, (shift * FREQUENCIES).cos(), (shift * FREQUENCIES).sin())
    # float32: angles are rounded once more
    assert torch.allclose(arena.keys[0, 2:8], keys_at(20 + shift, raw), atol=2e-5)
    assert not arena.keys[0, :2].any() and not arena.keys[0, 8:].any()


def test_int8_keys_are_quantised_again_with_scales_of_their_own() -> None:
    raw = torch.randn(6, 2, 32)
    arena = KVArena(1, 6, 2, 32, torch.int8)
    assert arena.key_scales is not None
    arena.keys[0], arena.key_scales[0] = quantise_rows(keys_at(0, raw))
    rope_shift(arena, 0, 6, (9 * FREQUENCIES).cos(), (9 * FREQUENCIES).sin())
    error = dequantise_rows(arena.keys[0], arena.key_scales[0]) - keys_at(9, raw)
    # two roundings of half a step; a rotation mixes a pair's errors, hence sqrt 2
    assert bool((error.abs() <= 1.25 * arena.key_scales[0, ..., None]).all())


@pytest.mark.parametrize(
    "kv_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str
)
@pytest.mark.parametrize("head_dim", [2, 40])
def test_the_triton_form_equals_the_torch_form(head_dim: int, kv_dtype: torch.dtype) -> None:
    check_rope_shift("cpu", 2, head_dim, kv_dtype)


def test_offsets_beyond_int32_are_reached() -> None:
    check_shift_beyond_int32("cpu")


def test_rows_outside_the_arena_are_refused() -> None:
    arena = KVArena(1, 10, 2, 32)
    with pytest.raises(KernelArgumentError, match=r"rows 8\.\.12 are not in an arena of 10"):
        rope_shift(arena, 8, 4, torch.ones(16), torch.ones(16))


def test_angles_of_another_head_size_are_refused() -> None:
    arena = KVArena(1, 10, 2, 32)
    with pytest.raises(KernelArgumentError, match="cos must be float32"):
        rope_shift(arena, 0, 4, torch.ones(8), torch.ones(16))
