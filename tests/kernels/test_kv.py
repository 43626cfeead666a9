"""K/V arenas and int8 rows."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.kv import KVArena, LayerKV, dequantise_rows, quantise_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_an_arena_begins_as_zeros_in_every_layer(dtype):
    arena = KVArena(3, 5, 2, 4, dtype)
    assert len(arena.layers) == 3
    for layer in arena.layers:
        assert layer.keys.shape == (5, 2, 4) and layer.keys.dtype == dtype
        assert not layer.keys.any() and not layer.values.any()
        assert layer.is_quantised == (dtype == torch.int8)


def test_layers_are_views_of_the_arena_and_do_not_overlap():
    arena = KVArena(2, 3, 1, 2)
    arena.layers[1].keys[2] = 7.0
    assert arena.keys[1, 2].eq(7).all() and not arena.keys[0].any()


def test_num_bytes_counts_rows_and_scales():
    assert KVArena(2, 3, 1, 4, torch.float32).num_bytes == 2 * 2 * 3 * 4 * 4
    assert KVArena(2, 3, 1, 4, torch.int8).num_bytes == 2 * 2 * 3 * (4 + 4)


@pytest.mark.parametrize("sizes", [(0, 1, 1, 2), (1, 0, 1, 2), (1, 1, -1, 2)])
def test_sizes_that_are_not_positive_are_refused(sizes):
    with pytest.raises(KernelArgumentError, match="positive"):
        KVArena(*sizes)


def test_a_dtype_that_cannot_hold_keys_is_refused():
    with pytest.raises(KernelArgumentError, match="int32"):
        KVArena(1, 1, 1, 2, torch.int32)


@pytest.mark.parametrize("shape", [(1, 1, 2), (7, 3, 64), (5, 2, 33)])
def test_int8_rows_are_within_half_a_step_of_the_values(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q, scale = quantise_rows(x)
    assert q.abs().amax(dim=-1).eq(127).all()  # the largest element uses the whole range
    error = (dequantise_rows(q, scale) - x).abs()
    assert (error <= scale[..., None] * 0.5001).all()


def test_a_row_of_zeros_stays_zeros():
    q, scale = quantise_rows(torch.zeros(2, 3, 4))
    assert not q.any() and not scale.any()


def test_a_layer_whose_tensors_do_not_fit_is_refused():
    keys, scales = torch.zeros(4, 2, 8), torch.zeros(4, 2)
    whole = torch.zeros(4, 2, 8, dtype=torch.int8)
    LayerKV(keys, keys)
    LayerKV(whole, whole, scales, scales)
    for parts, named in (
        ((keys, keys[:3]), "one dtype"),
        ((keys, keys.half()), "one dtype"),
        ((whole, whole), "int8 need key scales"),
        ((keys, keys, scales, scales), "float32 have no key scales"),
        ((whole, whole, scales[:3], scales), "key scales must be"),
    ):
        with pytest.raises(KernelArgumentError, match=named):
            LayerKV(*parts)
