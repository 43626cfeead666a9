"""The compiled pass: bit for bit the same whatever is batched, however many threads run it."""

import dataclasses

import pytest
import torch

from kernels.dispatch import use_backend
from kernels.errors import KernelArgumentError, PassAbandoned
from llm_engine.batch import Batch, ExtentView
from llm_engine.random_model import random_config, random_model
from tests.llm_engine.twin import one_sequence

TOKENS = torch.randint(0, 259, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def run(model, sizes, first_row=0):
    """Logits of TOKENS in passes of the given sizes."""
    arena, done, parts = model.new_arena(64), 0, []
    for size in sizes:
        batch = one_sequence(TOKENS[done : done + size], first_row, done)
        parts.append(model.forward(batch, arena))
        done += size
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
@pytest.mark.parametrize("family", ["smollm2", "qwen3", "mistral"])
def test_the_sizes_of_passes_do_not_change_a_bit(family, dtype):
    model = random_model(family, 1, dtype)
    whole = run(model, [40])
    assert torch.equal(run(model, [1] * 40), whole)
    assert torch.equal(run(model, [7, 4, 1, 2, 3, 23], first_row=9), whole)


def test_other_sequences_do_not_change_a_bit():
    model = random_model("smollm2", 2, "int4")
    alone = run(model, [40])[[39]]
    others = [TOKENS[:3], TOKENS, TOKENS[5:9]]
    extents = ((ExtentView(60, 3, 0),), (ExtentView(8, 40, 0),), (ExtentView(2, 4, 0),))
    starts = [60, 8, 2]
    rows = [s + i for s, ids in zip(starts, others, strict=True) for i in range(len(ids))]
    batch = Batch(
        token_ids=torch.tensor(sum(others, [])),
        positions=torch.cat([torch.arange(len(ids)) for ids in others]),
        rows=torch.tensor(rows),
        query_start=(0, 3, 43, 47),
        extents=extents,
        logit_tokens=torch.tensor([42]),
    )
    assert torch.equal(model.forward(batch, model.new_arena(64)), alone)


def test_the_number_of_threads_does_not_change_a_bit():
    from llm_engine.config import ModelConfig
    from llm_engine.model import Model

    one = random_model("qwen2", 3, "int8")
    config = ModelConfig.from_hf(random_config("qwen2"))
    three = Model(config, one.weights, torch.float32, torch.device("cpu"), num_threads=3)
    for _ in range(20):  # threads meet differently every time
        assert torch.equal(run(three, [30, 1, 9]), run(one, [30, 1, 9]))


def test_rows_are_written_as_the_operators_write_them():
    model = random_model("qwen3", 4)
    compiled, plain = model.new_arena(64), model.new_arena(64)
    batch = one_sequence(TOKENS, first_row=5)
    model.forward(batch, compiled)
    with use_backend("torch"):
        model.forward(batch, plain)
    torch.testing.assert_close(compiled.keys, plain.keys, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.values, plain.values, rtol=1e-4, atol=1e-5)
    assert not compiled.keys[:, :5].any() and not compiled.keys[:, 45:].any()


def test_masked_rows_do_not_count():
    model = random_model("llama2", 5)
    batch = one_sequence(TOKENS, first_row=3)
    expected = model.forward(batch, model.new_arena(64))
    arena = model.new_arena(64)
    arena.keys.fill_(1e4)
    arena.values.fill_(1e4)
    assert torch.equal(model.forward(batch, arena), expected)


def test_a_token_may_be_wanted_twice_or_not_at_all():
    model = random_model("llama2", 6)
    batch = dataclasses.replace(one_sequence(TOKENS), logit_tokens=torch.tensor([3, 39, 3]))
    logits = model.forward(batch, model.new_arena(64))
    assert torch.equal(logits[0], logits[2]) and not torch.equal(logits[0], logits[1])
    none = dataclasses.replace(batch, logit_tokens=torch.empty(0, dtype=torch.int64))
    assert model.forward(none, model.new_arena(64)).shape == (0, 259)


def test_a_pass_given_up_half_way_can_be_run_again(monkeypatch):
    monkeypatch.setattr("kernels.cpu_pass.LAYERS_BETWEEN_ASKING", 1)
    model = random_model("smollm2", 4, "int4")
    batch, arena, num_asked = one_sequence(TOKENS), model.new_arena(64), 0

    def never():
        nonlocal num_asked
        num_asked += 1
        return False

    with pytest.raises(PassAbandoned):
        model.forward(batch, arena, never)
    assert num_asked == 1
    whole = model.forward(batch, model.new_arena(64))
    assert torch.equal(model.forward(batch, arena, lambda: True), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.arange(40) + 50}, "rows span 50..89"),
        ({"rows": torch.arange(40) - 1}, "rows span -1..38"),
        ({"logit_tokens": torch.tensor([40])}, "wanted span 40..40"),
        ({"extents": ((ExtentView(30, 40, 0),),)}, "ends span 70..70"),
    ],
)
def test_rows_and_tokens_that_are_not_there_are_refused(change, message):
    model = random_model("llama2", 7)
    batch = dataclasses.replace(one_sequence(TOKENS), **change)
    with pytest.raises(KernelArgumentError, match=message):
        model.forward(batch, model.new_arena(64))
