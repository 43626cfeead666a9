"""One flattened batch: what the runner gives the model for a step.

T tokens of S sequences, each sequence's tokens contiguous and in order of position. K/V of token t
is written to arena row `rows[t]`; afterwards token t attends to every row of its sequence's extents
whose position is not greater than its own (and within the sliding window, where there is one).
Positions are compared, never row numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExtentView:
    """The readable part of one extent: `num_rows` consecutive rows at consecutive positions."""

    first_row: int
    num_rows: int
    first_position: int


@dataclass(frozen=True, slots=True)
class Batch:
    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    rows: torch.Tensor  # [T] int64, arena row of each token's K/V
    query_start: tuple[int, ...]  # [S+1], tokens of sequence s are query_start[s]:query_start[s+1]
    extents: tuple[
        tuple[ExtentView, ...], ...
    ]  # [S] readable rows of each sequence, this batch's included
    logit_tokens: torch.Tensor  # [N] int64, indices into T whose logits are wanted

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return len(self.extents)

    @property
    def sequence_of(self) -> torch.Tensor:
        """[T] int64: the sequence each token belongs to."""
        counts = torch.tensor(
            [
                end - start
                for start, end in zip(self.query_start, self.query_start[1:], strict=False)
            ]
        )
        return torch.repeat_interleave(torch.arange(self.num_sequences), counts)
