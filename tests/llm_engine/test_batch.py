from __future__ import annotations

import torch

from llm_engine.batch import Batch, ExtentView


def test_each_token_knows_its_sequence() -> None:
    extents = ((ExtentView(0, 2, 0),), (), (ExtentView(5, 3, 0),))
    tokens = torch.arange(5)
    batch = Batch(tokens, tokens, tokens, (0, 2, 2, 5), extents, torch.tensor([1, 4]))
    assert (batch.num_tokens, batch.num_sequences) == (5, 3)
    assert batch.sequence_of.tolist() == [0, 0, 2, 2, 2]
