"""Row moves; from feeds to tensors and back: one forward pass, sampling, end probabilities."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from kernels.dispatch import forced_backend
from kernels.kv import KVArena
from kernels.rope_shift import rope_shift
from llm_engine.batch import Batch
from llm_engine.cuda_graphs import StepGraphs
from llm_engine.engine_config import EngineConfig
from llm_engine.model import Model
from llm_engine.relayout import Moves
from llm_engine.rotary import inverse_frequencies
from llm_engine.sampling import SampleRow, sample_rows
from llm_engine.sequence import Feed, Outcome
from llm_engine.tokenizer import Tokenizer


class Runner:
    """Owns the arena. All calls come from the engine's thread."""

    def __init__(self, model: Model, tokenizer: Tokenizer, sizes: EngineConfig) -> None:
        self.model = model
        is_on_gpu = model.device.type == "cuda"
        self.arena: KVArena = model.new_arena(
            sizes.num_rows + is_on_gpu, torch.int8 if sizes.kv_dtype == "int8" else None
        )
        self._graphs: StepGraphs | None = None
        if is_on_gpu:  # the row after those of the sequences takes what padding tokens write
            bound = 2 * sizes.max_sequence_tokens  # blank rows of slots count as positions too
            self._graphs = StepGraphs(model, self.arena, sizes.num_rows, bound)
        ends = sorted(tokenizer.eos_ids | tokenizer.sentence_end_ids)
        self._end_ids = torch.tensor(
            [token for token in ends if token < model.config.vocab_size], device=model.device
        )
        config = model.config
        self._frequencies = inverse_frequencies(config.rope, config.head_dim).to(model.device)

    def warm_up(self) -> None:
        """What is compiled once on a GPU, before a caller waits for it."""
        if self._graphs is not None:
            self._graphs.warm_up()
            self._shift(0, 1, 1)  # no row is in use yet

    def move(self, moves: Moves) -> None:
        """Copy and shift rows; all sources are read before a target is written."""
        if moves.copies:
            source = _indices([(first, count) for first, _, count in moves.copies])
            target = _indices([(first, count) for _, first, count in moves.copies])
            source, target = source.to(self.model.device), target.to(self.model.device)
            for rows in self._row_tensors():
                rows[:, target] = rows[:, source]
        for first_row, num_rows, delta in moves.shifts:
            self._shift(first_row, num_rows, delta)

    def _row_tensors(self) -> list[torch.Tensor]:
        arena = self.arena
        tensors = (arena.keys, arena.values, arena.key_scales, arena.value_scales)
        return [tensor for tensor in tensors if tensor is not None]

    def _shift(self, first_row: int, num_rows: int, delta: int) -> None:
        angles = self._frequencies * delta  # [D/2]
        rope_shift(self.arena, first_row, num_rows, angles.cos(), angles.sin())

    def run(self, feeds: Seq[Feed], may_go_on: Callable[[], bool] | None = None) -> list[Outcome]:
        """One forward pass over all feeds, whose moves are done; an outcome for each, in order.

        Raises NonFiniteLogits, PassAbandoned when `may_go_on` says no half-way, and whatever the
        model raises: no row counts as written then.
        """
        logits = self._forward(_batch(feeds), may_go_on)  # [N, V] float32
        scores: list[float | None] = []
        sampled: list[int] = []  # rows of logits
        rows: list[SampleRow] = []
        row = 0
        for feed in feeds:
            scores.append(None if feed.score_at is None else self._end_probability(logits[row]))
            row += feed.score_at is not None
            own = _sample_rows(feed)
            sampled += range(row, row + len(own))
            rows += own
            row += len(own)
        if len(sampled) < row:
            logits = logits[sampled]
        picked = iter(sample_rows(logits, rows) if rows else ())
        outcomes = []
        for feed, score in zip(feeds, scores, strict=True):
            tokens = [next(picked) for _ in range(feed.num_samples)]
            outcomes.append(
                Outcome(
                    tuple(token.token_id for token in tokens),
                    tuple(token.tie_margin for token in tokens),
                    score,
                )
            )
        return outcomes

    def _forward(self, batch: Batch, may_go_on: Callable[[], bool] | None) -> torch.Tensor:
        # a graph holds the kernels: it is no way to run the references
        graphs = None if forced_backend() == "torch" else self._graphs
        replayed = None if graphs is None else graphs.forward(batch)
        return self.model.forward(batch, self.arena, may_go_on) if replayed is None else replayed

    def _end_probability(self, logits: torch.Tensor) -> float:
        """P(end of message or sentence) after one token; logits[V]."""
        return float(torch.softmax(logits, dim=-1)[self._end_ids].sum())


def _sample_rows(feed: Feed) -> list[SampleRow]:
    """The places of `feed` that decide reply tokens."""
    config, draft = feed.sequence.config, feed.sequence.reply.draft
    known: tuple[int, ...] = ()
    if config.sampling.repetition_penalty != 1:
        known = (*feed.sequence.prompt_ids, *draft.token_ids)
    return [
        SampleRow(
            config.sampling,
            config.seed,
            feed.sequence.turn,
            len(draft) + place,
            (*known, *feed.proposals[:place]) if known else (),
            feed.proposals[place] if place < len(feed.proposals) else None,
        )
        for place in range(feed.num_samples)
    ]


def _indices(runs: Seq[tuple[int, int]]) -> torch.Tensor:
    return torch.cat([torch.arange(first, first + count) for first, count in runs])


def _batch(feeds: Seq[Feed]) -> Batch:
    """Flatten feeds: their tokens one after the other, each at its position and row."""
    token_ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    query_start = [0]
    wanted: list[int] = []
    for feed in feeds:
        first = query_start[-1]
        for piece in feed.pieces:
            count = len(piece.token_ids)
            position = piece.extent.first_position + piece.offset
            row = piece.extent.first_row + piece.offset
            token_ids += piece.token_ids
            positions += range(position, position + count)
            rows += range(row, row + count)
        query_start.append(first + feed.num_tokens)
        if feed.score_at is not None:
            wanted.append(first + feed.score_at)
        if feed.sample_from is not None:
            wanted += range(first + feed.sample_from, first + feed.num_tokens)
    return Batch(
        torch.tensor(token_ids),
        torch.tensor(positions),
        torch.tensor(rows),
        tuple(query_start),
        tuple(feed.sequence.kv.views(feed.pieces) for feed in feeds),
        torch.tensor(wanted, dtype=torch.int64),
    )
