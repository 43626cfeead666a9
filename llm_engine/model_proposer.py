"""A smaller model of the same tokenizer that guesses how the reply goes on.

It samples with the same noise as the model it guesses for, so that the two agree wherever their
distributions do, at any temperature. (Leviathan et al. 2023, with equality in place of acceptance.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.kv import KVArena
from llm_engine.batch import Batch, ExtentView
from llm_engine.model import Model
from llm_engine.sampling import SampleRow, sample_rows


class ModelProposer:
    """Guesses for one session. Keeps the K/V of the last context and computes what differs.

    `max_tokens`: the longest context it works on; behind a longer one it proposes nothing.
    """

    def __init__(self, model: Model, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = min(max_tokens, model.config.max_positions)
        self._arena: KVArena = model.new_arena(self._max_tokens)
        self._cached: list[int] = []  # tokens whose rows are written, in order

    def propose(
        self, context_ids: Sequence[int], max_tokens: int, first: SampleRow
    ) -> tuple[int, ...]:
        """Up to `max_tokens` tokens behind `context_ids`; `first` is the first one's position.

        Raises NonFiniteLogits.
        """
        context = list(context_ids)
        # the last guess is not run through the model: its rows would be the next call's to write
        room = self._max_tokens - len(context) + 1
        guesses: list[int] = []
        for index in range(min(max_tokens, room) if context else 0):
            logits = self._run(context + guesses)
            position = replace(
                first,
                reply_index=first.reply_index + index,
                preceding=(*first.preceding, *guesses),
                draft=None,
            )
            guesses.append(sample_rows(logits, [position])[0].token_id)
        return tuple(guesses)

    def _run(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [1, V] after `token_ids`; computes from the first token that is not cached."""
        start = 0
        last = len(token_ids) - 1  # is run in any case, for its logits
        while start < min(last, len(self._cached)) and self._cached[start] == token_ids[start]:
            start += 1
        places = torch.arange(start, len(token_ids))
        batch = Batch(
            token_ids=torch.tensor(token_ids[start:]),
            positions=places,
            rows=places,
            query_start=(0, len(token_ids) - start),
            extents=((ExtentView(0, len(token_ids), 0),),),
            logit_tokens=torch.tensor([last - start]),
        )
        logits = self._model.forward(batch, self._arena)
        self._cached = token_ids
        return logits
