from __future__ import annotations

import pytest
import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.events import SamplingParams
from llm_engine.model import Model
from llm_engine.model_proposer import ModelProposer
from llm_engine.random_model import random_model
from llm_engine.sampling import SampleRow, sample_rows

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1)


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model("smollm2", seed=0)


def continue_slowly(model: Model, context: list[int], count: int, first: SampleRow) -> list[int]:
    """Whole prefill for every token."""
    tokens = list(context)
    for index in range(count):
        places = torch.arange(len(tokens))
        batch = Batch(
            torch.tensor(tokens),
            places,
            places,
            (0, len(tokens)),
            ((ExtentView(0, len(tokens), 0),),),
            places[-1:],
        )
        logits = model.forward(batch, model.new_arena(len(tokens)))
        row = SampleRow(
            first.params, first.seed, first.turn, first.reply_index + index, tuple(tokens)
        )
        tokens.append(sample_rows(logits, [row])[0].token_id)
    return tokens[len(context) :]


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_a_model_that_guesses_for_itself_is_always_right(
    model: Model, params: SamplingParams
) -> None:
    proposer = ModelProposer(model, 64)
    for context in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9], [7], [1, 2, 9, 9]):
        first = SampleRow(params, seed=5, turn=1, reply_index=3, preceding=tuple(context))
        expected = continue_slowly(model, context, 6, first)
        assert proposer.propose(context, 6, first) == tuple(expected)


def test_only_what_changed_is_computed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    forward = Model.forward

    def counting(self: Model, batch: Batch, arena: object) -> torch.Tensor:
        computed.append(batch.num_tokens)
        return forward(self, batch, arena)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "forward", counting)
    proposer = ModelProposer(model, 64)
    first = SampleRow(GREEDY, 0, 0, 0)
    context = list(range(20))
    guesses = proposer.propose(context, 3, first)
    assert computed == [20, 1, 1]
    computed.clear()
    proposer.propose([*context, guesses[0], guesses[1], 31], 1, first)
    assert computed == [1]


def test_a_context_beyond_its_memory_gets_no_proposal(model: Model) -> None:
    proposer = ModelProposer(model, 8)
    first = SampleRow(GREEDY, 0, 0, 0)
    assert len(proposer.propose(list(range(6)), 9, first)) == 3
    assert proposer.propose(list(range(9)), 4, first) == ()
    assert proposer.propose([], 4, first) == ()
