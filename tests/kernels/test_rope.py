"""Rotation against complex multiplication in float64, and the write into arena rows."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.kv import KVArena, dequantise_rows
from kernels.rope import rope_and_write_kv


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def angles(num_tokens, head_dim):
    theta = random(num_tokens, head_dim // 2, seed=9) * 20
    return theta, theta.cos(), theta.sin()


def turned(x, theta):
    """x[T,H,D] with pair (d, d + D/2) turned by theta[T, D/2], as complex numbers."""
    first, second = x.double().chunk(2, dim=-1)
    number = torch.complex(first, second) * torch.exp(1j * theta.double())[:, None, :]
    return torch.cat((number.real, number.imag), dim=-1)


@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim"),
    [(1, 1, 1, 2), (5, 9, 3, 64), (3, 8, 1, 40)],
)
def test_queries_and_keys_are_rotated_and_rows_written(
    num_tokens, num_heads, num_kv_heads, head_dim
):
    q = random(num_tokens, num_heads, head_dim)
    k, v = (random(num_tokens, num_kv_heads, head_dim, seed=seed) for seed in (1, 2))
    theta, cos, sin = angles(num_tokens, head_dim)
    cache = KVArena(1, 16, num_kv_heads, head_dim).layers[0]
    cache.keys.fill_(torch.nan)
    rows = torch.randperm(16, generator=torch.Generator().manual_seed(3))[:num_tokens]
    rotated = rope_and_write_kv(q, k, v, cos, sin, rows, cache)
    torch.testing.assert_close(rotated.double(), turned(q, theta), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache.keys[rows].double(), turned(k, theta), rtol=1e-5, atol=1e-5)
    assert torch.equal(cache.values[rows], v)  # a copy: equal bit for bit
    others = [row for row in range(16) if row not in rows.tolist()]
    assert cache.keys[others].isnan().all() and not cache.values[others].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_take_the_arenas_dtype(dtype):
    q, k, v = (random(2, 2, 8, seed=seed) for seed in range(3))
    _, cos, sin = angles(2, 8)
    cache = KVArena(1, 4, 2, 8, dtype).layers[0]
    rope_and_write_kv(q, k, v, cos, sin, torch.tensor([3, 0]), cache)
    assert torch.equal(cache.values[[3, 0]], v.to(dtype))


def test_int8_rows_hold_the_rotated_key_within_half_a_step():
    q, k, v = (random(3, 2, 16, seed=seed) for seed in range(3))
    theta, cos, sin = angles(3, 16)
    cache = KVArena(1, 8, 2, 16, torch.int8).layers[0]
    rows = torch.tensor([7, 1, 4])
    rope_and_write_kv(q, k, v, cos, sin, rows, cache)
    for data, scales, expected in (
        (cache.keys, cache.key_scales, turned(k, theta)),
        (cache.values, cache.value_scales, v.double()),
    ):
        error = (dequantise_rows(data[rows], scales[rows]).double() - expected).abs()
        assert (error <= scales[rows][..., None] * 0.501).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 2, 7)}, "D even"),
        ({"k": torch.zeros(2, 1, 8)}, r"k must be .*\(2, 1, 8\)"),
        ({"v": torch.zeros(2, 2, 8).double()}, "v must be .*float64"),
        ({"cos": torch.zeros(2, 8)}, r"cos must be .*\(2, 8\)"),
        ({"sin": torch.zeros(2, 4).double()}, "sin must be float32"),
        ({"rows": torch.tensor([1, 2], dtype=torch.int32)}, "int32"),
        ({"cache": KVArena(1, 4, 2, 6).layers[0]}, "6 elements"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    arguments = {
        "q": torch.zeros(2, 4, 8),
        "k": torch.zeros(2, 2, 8),
        "v": torch.zeros(2, 2, 8),
        "cos": torch.zeros(2, 4),
        "sin": torch.zeros(2, 4),
        "rows": torch.tensor([0, 1]),
        "cache": KVArena(1, 4, 2, 8).layers[0],
    }
    with pytest.raises(KernelArgumentError, match=message):
        rope_and_write_kv(**(arguments | change))
