"""Attention over extents against a plain loop in float64."""

import pytest
import torch

from kernels.errors import KernelArgumentError
from kernels.kv import KVArena, dequantise_rows, quantise_rows
from kernels.segment_attention import AttentionTable, segment_attention
from llm_engine.batch import ExtentView

MASKED = 1e4  # what rows hold that nobody may read


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(q, keys, values, extents, query_start, positions, scale, window):
    """float64, one token and head at a time, straight from the definition."""
    num_heads, num_kv_heads = q.shape[1], keys.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for sequence, own in enumerate(extents):
        rows = [e.first_row + i for e in own for i in range(e.num_rows)]
        row_positions = [e.first_position + i for e in own for i in range(e.num_rows)]
        for token in range(query_start[sequence], query_start[sequence + 1]):
            here = int(positions[token])
            seen = [
                row
                for row, position in zip(rows, row_positions, strict=True)
                if position <= here and (window is None or position > here - window)
            ]
            if not seen:
                continue
            for head in range(num_heads):
                shared = head // (num_heads // num_kv_heads)
                k, v = keys[seen, shared].double(), values[seen, shared].double()
                weights = torch.softmax(k @ q[token, head].double() * scale, dim=0)
                out[token, head] = weights @ v
    return out


def check(num_heads, num_kv_heads, head_dim, extents, query_start, positions, window=None):
    """Every row outside the extents holds 1e4; the result is compared with the loop's."""
    num_rows = 64
    cache = KVArena(1, num_rows, num_kv_heads, head_dim).layers[0]
    cache.keys.fill_(MASKED)
    cache.values.fill_(MASKED)
    for own in extents:
        for extent in own:
            rows = slice(extent.first_row, extent.first_row + extent.num_rows)
            cache.keys[rows] = random(extent.num_rows, num_kv_heads, head_dim, seed=rows.start)
            cache.values[rows] = random(extent.num_rows, num_kv_heads, head_dim, seed=rows.stop)
    positions = torch.tensor(positions)
    q = random(len(positions), num_heads, head_dim, seed=99)
    table = AttentionTable.build(extents, query_start, positions)
    scale = head_dim**-0.5
    out = segment_attention(q, cache, table, scale, window)
    reference = expected(
        q, cache.keys, cache.values, extents, query_start, positions, scale, window
    )
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 2), (3, 64), (2, 40)])
def test_grouped_heads_share_keys_and_values(group, num_kv_heads, head_dim):
    extents = ((ExtentView(5, 9, 0),),)
    check(group * num_kv_heads, num_kv_heads, head_dim, extents, (0, 3), [6, 7, 8])


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_windows_and_causality_compare_positions_not_rows(window):
    # The later positions lie in lower rows, and between the extents a gap of positions.
    extents = ((ExtentView(40, 6, 0), ExtentView(10, 5, 6), ExtentView(1, 4, 30)),)
    check(4, 2, 16, extents, (0, 3), [10, 31, 33], window)


def test_rows_written_ahead_of_a_token_are_not_attended():
    check(2, 1, 8, ((ExtentView(0, 20, 0),),), (0, 2), [3, 11])


def test_sequences_of_one_batch_read_only_their_own_rows():
    extents = (
        (ExtentView(0, 7, 0),),
        (ExtentView(20, 1, 0),),
        (ExtentView(30, 5, 0), ExtentView(50, 3, 5)),
    )
    check(6, 3, 32, extents, (0, 4, 5, 7), [3, 4, 5, 6, 0, 6, 7])


def test_sequences_may_share_an_extent():
    prefix = ExtentView(0, 5, 0)
    extents = ((prefix, ExtentView(10, 2, 5)), (prefix, ExtentView(20, 4, 5)))
    check(4, 4, 8, extents, (0, 1, 3), [6, 7, 8])


def test_empty_extents_and_sequences_without_tokens_are_allowed():
    extents = ((ExtentView(0, 0, 0), ExtentView(8, 3, 0)), (), (ExtentView(20, 2, 0),))
    check(2, 2, 8, extents, (0, 1, 1, 2), [2, 1])


def test_a_token_that_sees_no_row_gets_zeros():
    extents = ((ExtentView(3, 4, 10),), ())
    check(2, 1, 8, extents, (0, 1, 2), [5, 0])


def test_int8_rows_are_read_through_their_scales():
    cache = KVArena(1, 8, 2, 16, torch.int8).layers[0]
    keys, values = random(8, 2, 16, seed=1), random(8, 2, 16, seed=2)
    cache.keys[:], cache.key_scales[:] = quantise_rows(keys)
    cache.values[:], cache.value_scales[:] = quantise_rows(values)
    q, positions = random(2, 4, 16), torch.tensor([5, 6])
    extents = ((ExtentView(0, 7, 0),),)
    table = AttentionTable.build(extents, (0, 2), positions)
    held = [
        dequantise_rows(data, scales)
        for data, scales in (
            (cache.keys, cache.key_scales),
            (cache.values, cache.value_scales),
        )
    ]
    reference = expected(q, *held, extents, (0, 2), positions, 0.25, None)
    out = segment_attention(q, cache, table, 0.25)
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "window", "message"),
    [
        ((1, 8), None, r"\[T, Hq, D\]"),
        ((1, 3, 8), None, "2 K/V heads"),
        ((1, 4, 6), None, "of 8 elements"),
        ((2, 4, 8), None, "2 tokens"),
        ((1, 4, 8), 0, "window"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(shape, window, message):
    cache = KVArena(1, 4, 2, 8).layers[0]
    table = AttentionTable.build(((ExtentView(0, 1, 0),),), (0, 1), torch.tensor([0]))
    with pytest.raises(KernelArgumentError, match=message):
        segment_attention(torch.zeros(shape), cache, table, 1.0, window)


@pytest.mark.parametrize("query_start", [(0, 1, 1), (0, 2), (1, 1)])
def test_a_table_that_does_not_describe_its_batch_is_refused(query_start):
    with pytest.raises(KernelArgumentError, match="query_start"):
        AttentionTable.build(((ExtentView(0, 1, 0),),), query_start, torch.tensor([0]))
