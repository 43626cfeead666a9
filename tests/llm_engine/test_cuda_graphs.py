"""Padding of steps to buckets, and what replaying them needs; the recording itself needs CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.cuda_graphs import BUCKETS, EXTENTS_PER_TOKEN, StaticBatch, StepGraphs
from llm_engine.random_model import random_model

NUM_ROWS = 40  # the last one is the scratch row
MAX_POSITIONS = 64


def as_it_is(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A recorder for a machine without CUDA: the pass runs anew on the static buffers."""
    return run


def step(*sequences: tuple[list[int], int, list[ExtentView]], wanted: list[int]) -> Batch:
    """Sequences of (token ids, first position, extents); a token's row is its place in them."""
    ids, positions, rows, starts = [], [], [], [0]
    for own, first_position, extents in sequences:
        for position in range(first_position, first_position + len(own)):
            place = next(e for e in extents if 0 <= position - e.first_position < e.num_rows)
            rows.append(place.first_row + position - place.first_position)
            positions.append(position)
        ids += own
        starts.append(len(ids))
    return Batch(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(rows),
        tuple(starts),
        tuple(tuple(extents) for _, _, extents in sequences),
        torch.tensor(wanted),
    )


PROMPTS = step(
    ([5, 6, 7, 8, 9], 0, [ExtentView(0, 3, 0), ExtentView(20, 2, 3)]),
    ([50, 51], 0, [ExtentView(10, 2, 0)]),
    wanted=[4, 6],
)
# one token of the first, three to verify of the second: padded from 4 to 4, or from 3 to 4
DECODE = step(
    ([12], 5, [ExtentView(0, 3, 0), ExtentView(20, 3, 3)]),
    ([52, 53, 54], 2, [ExtentView(10, 5, 0)]),
    wanted=[0, 1, 2, 3],
)
PADDED = step(
    ([12], 5, [ExtentView(0, 3, 0), ExtentView(20, 3, 3)]),
    ([52, 53], 2, [ExtentView(10, 4, 0)]),
    wanted=[0, 2],
)


@pytest.mark.parametrize("batch", [DECODE, PADDED], ids=["full", "padded"])
def test_a_step_in_its_bucket_gives_the_plain_passs_logits_and_rows(batch: Batch) -> None:
    model = random_model("llama2", 0)
    plain, padded = model.new_arena(NUM_ROWS), model.new_arena(NUM_ROWS)
    graphs = StepGraphs(model, padded, NUM_ROWS - 1, MAX_POSITIONS, as_it_is)
    for arena in (plain, padded):
        model.forward(PROMPTS, arena)
    wanted = model.forward(batch, plain)
    # twice: what the first fill left in the buffers must not show in the second
    graphs.forward(DECODE)
    logits = graphs.forward(batch)
    assert logits is not None
    # float32: a product over another number of tokens sums in another order
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    own = slice(0, NUM_ROWS - 1)
    if batch is DECODE:
        torch.testing.assert_close(padded.keys[:, own], plain.keys[:, own], atol=1e-5, rtol=0)
        torch.testing.assert_close(padded.values[:, own], plain.values[:, own], atol=1e-5, rtol=0)


@pytest.mark.parametrize("wanted", [[], [1], [1, 2], [0, 2], [2, 0], [1, 1, 2]], ids=str)
def test_the_logits_are_those_of_the_wanted_tokens_in_their_order(wanted: list[int]) -> None:
    model = random_model("llama2", 0)
    arena = model.new_arena(NUM_ROWS)
    graphs = StepGraphs(model, arena, NUM_ROWS - 1, MAX_POSITIONS, as_it_is)
    every = graphs.forward(replace(PADDED, logit_tokens=torch.arange(3)))
    some = graphs.forward(replace(PADDED, logit_tokens=torch.tensor(wanted, dtype=torch.int64)))
    assert every is not None and some is not None
    assert torch.equal(some, every[wanted])


def test_padding_writes_to_the_scratch_row_alone() -> None:
    model = random_model("llama2", 0)
    arena = model.new_arena(NUM_ROWS)
    graphs = StepGraphs(model, arena, NUM_ROWS - 1, MAX_POSITIONS, as_it_is)
    graphs.forward(PADDED)
    touched = arena.keys.abs().sum(dim=(0, 2, 3)).nonzero().flatten().tolist()
    assert touched == [12, 13, 22, NUM_ROWS - 1]


def test_every_bucket_is_recorded_once() -> None:
    model = random_model("llama2", 0)
    recorded = []

    def recorder(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        recorded.append(run)
        return run

    arena = model.new_arena(NUM_ROWS)
    graphs = StepGraphs(model, arena, NUM_ROWS - 1, MAX_POSITIONS, recorder)
    graphs.warm_up()
    graphs.forward(PADDED)
    assert len(recorded) == len(BUCKETS)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 64])
def test_all_parts_of_a_static_batch_begin_at_16_bytes(num_tokens: int) -> None:
    static = StaticBatch(num_tokens, 0, torch.device("cpu"))
    table = static.table(MAX_POSITIONS)
    parts = {
        static.token_ids: (num_tokens,),
        static.rows: (num_tokens,),
        table.positions: (num_tokens,),
        table.extents: (EXTENTS_PER_TOKEN * num_tokens, 3),
        table.extent_start: (num_tokens + 2,),
        table.query_start: (num_tokens + 2,),
    }
    assert [part.storage_offset() % 2 for part in parts] == [0] * len(parts)
    assert [tuple(part.shape) for part in parts] == list(parts.values())


def test_a_step_beyond_the_buckets_is_not_replayed() -> None:
    model = random_model("llama2", 0)
    arena = model.new_arena(200)
    graphs = StepGraphs(model, arena, 199, MAX_POSITIONS, as_it_is)
    long = step(([1] * 65, 0, [ExtentView(0, 65, 0)]), wanted=[64])
    assert graphs.forward(long) is None
    pieces = [ExtentView(row, 1, row) for row in range(EXTENTS_PER_TOKEN + 1)]
    scattered = step(([1], EXTENTS_PER_TOKEN, pieces), wanted=[0])
    assert graphs.forward(scattered) is None


def test_a_step_beyond_the_known_positions_is_not_replayed() -> None:
    model = random_model("llama2", 0)
    graphs = StepGraphs(model, model.new_arena(NUM_ROWS), NUM_ROWS - 1, MAX_POSITIONS, as_it_is)
    last = step(([1], MAX_POSITIONS - 1, [ExtentView(0, 1, MAX_POSITIONS - 1)]), wanted=[0])
    beyond = step(([1], MAX_POSITIONS, [ExtentView(0, 1, MAX_POSITIONS)]), wanted=[0])
    assert graphs.forward(last) is not None
    assert graphs.forward(beyond) is None
