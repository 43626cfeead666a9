"""Row moves, and that feeds of several sessions in one pass do not see each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.dispatch import use_backend
from llm_engine.batch import Batch, ExtentView
from llm_engine.cuda_graphs import StepGraphs
from llm_engine.engine_config import EngineConfig
from llm_engine.relayout import Moves
from llm_engine.runner import Runner
from tests.llm_engine.engine_rig import ByteTokenizer, make_engine, open_session, prompt, tiny_model

TOKENIZER: Any = ByteTokenizer()


def prefilled(ids: list[int], first_position: int) -> Runner:
    """A runner whose rows 0.. hold `ids` at consecutive positions."""
    runner = Runner(tiny_model(), TOKENIZER, EngineConfig(num_rows=64))
    count = len(ids)
    positions = torch.arange(first_position, first_position + count)
    views = ((ExtentView(0, count, first_position),),)
    wanted = torch.tensor([count - 1])
    batch = Batch(torch.tensor(ids), positions, torch.arange(count), (0, count), views, wanted)
    runner.model.forward(batch, runner.arena)
    return runner


def test_copies_read_all_rows_before_they_write_any() -> None:
    runner = prefilled([5, 6, 7, 8], 0)
    before = runner.arena.keys[:, :4].clone()
    runner.move(Moves(copies=((0, 1, 3), (3, 0, 1))))
    assert torch.equal(runner.arena.keys[:, 1:4], before[:, :3])
    assert torch.equal(runner.arena.keys[:, 0], before[:, 3])


def test_shifted_keys_of_the_first_layer_equal_keys_computed_there() -> None:
    runner = prefilled([5, 6, 7, 8], 3)
    expected = prefilled([5, 6, 7, 8], 17)
    runner.move(Moves(shifts=((0, 4, 14),)))
    # the first layer's keys depend on nothing but token and position
    torch.testing.assert_close(
        runner.arena.keys[0, :4], expected.arena.keys[0, :4], atol=1e-5, rtol=0
    )


def test_a_graph_is_not_taken_for_the_references() -> None:
    runner = Runner(tiny_model(), TOKENIZER, EngineConfig(num_rows=64))
    replayed: list[int] = []

    def recorder(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: (replayed.append(1), run())[1]

    runner._graphs = StepGraphs(runner.model, runner.arena, 63, 64, recorder)
    one = torch.zeros(1, dtype=torch.int64)
    batch = Batch(one, one, one, (0, 1), ((ExtentView(0, 1, 0),),), one)
    with use_backend("torch"):
        expected = runner._forward(batch, None)
    assert not replayed
    torch.testing.assert_close(runner._forward(batch, None), expected, atol=1e-4, rtol=0)
    assert replayed


def test_the_end_probability_is_that_of_ends_of_message_and_sentence() -> None:
    runner = Runner(tiny_model(), TOKENIZER, EngineConfig(num_rows=16))
    logits = torch.zeros(TOKENIZER.vocab_size)
    count = len(TOKENIZER.eos_ids | TOKENIZER.sentence_end_ids)
    assert abs(runner._end_probability(logits) - count / TOKENIZER.vocab_size) < 1e-6


def test_a_session_in_a_full_batch_is_answered_as_it_would_be_alone() -> None:
    words = tuple(b"what is it")
    alone = make_engine()
    session, expected = open_session(alone)
    alone.commit(session, prompt(0, words))
    while alone.step() is not None:
        pass
    engine = make_engine()
    sessions = [open_session(engine) for _ in range(3)]
    for number, (session, _) in enumerate(sessions):
        engine.commit(session, prompt(0, (words, words[:4], (90, 91))[number]))
    while engine.step() is not None:
        pass
    assert sessions[0][1].reply(0) == expected.reply(0)
