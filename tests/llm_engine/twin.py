"""What tests do with the same model in transformers, and batches to compare it on."""

from __future__ import annotations

from typing import Any

import torch

from llm_engine.batch import Batch, ExtentView


def twin_logits(twin: Any, token_ids: list[int]) -> torch.Tensor:
    """float32[T, V] of one sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = twin(torch.tensor([token_ids])).logits[0].float()
    return logits


def one_sequence(token_ids: list[int], first_row: int = 0, num_cached: int = 0) -> Batch:
    """A batch of one sequence in one extent: `token_ids` follow `num_cached` rows already there."""
    num_tokens = len(token_ids)
    positions = torch.arange(num_cached, num_cached + num_tokens)
    return Batch(
        token_ids=torch.tensor(token_ids),
        positions=positions,
        rows=positions + first_row,
        query_start=(0, num_tokens),
        extents=((ExtentView(first_row, num_cached + num_tokens, 0),),),
        logit_tokens=torch.arange(num_tokens),
    )
