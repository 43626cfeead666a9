"""Small steps replayed as CUDA graphs: one launch instead of hundreds per forward pass.

A graph repeats the same kernels on the same addresses, so a step's inputs are padded to a bucket of
tokens and copied into buffers that stay. Padding tokens form a sequence of their own without
extents: they attend to nothing, write K/V to a row that nobody reads, and their logits are dropped.
Graphs are captured on first use, in `warm_up` ahead of the first caller.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch

from kernels.kv import KVArena
from kernels.segment_attention import AttentionTable
from llm_engine.batch import Batch
from llm_engine.model import Model

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # tokens of a step; larger steps gain nothing from a graph
EXTENTS_PER_TOKEN = 16  # room for extents; a step with more is not replayed

Pass = Callable[[], torch.Tensor]


def capture(run: Pass) -> Pass:
    """Record what `run` does on the current CUDA device; the result replays it.

    `run` must read and write the same memory each time. It is run once before, so that kernels are
    compiled and libraries set up outside the recording.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


class StaticBatch:
    """A batch of up to `num_tokens` tokens in memory that stays where it is."""

    def __init__(self, num_tokens: int, scratch_row: int, device: torch.device) -> None:
        self.num_tokens = num_tokens
        self.max_extents = EXTENTS_PER_TOKEN * num_tokens
        self._scratch_row = scratch_row
        # every token may be a sequence of its own, and the padding is one more
        num_sequences = num_tokens + 1
        sizes = [num_tokens] * 3 + [3 * self.max_extents] + [num_sequences + 1] * 2
        # parts begin at multiples of 16 bytes: kernels are compiled for all buckets alike
        padded = [size + size % 2 for size in sizes]
        self._host = torch.zeros(sum(padded), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = self._host.to(device, copy=True)
        self._is_read = (
            torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        )
        # numpy shares the memory, and a small assignment costs it a third of torch's time
        host_parts = np.split(self._host.numpy(), np.cumsum(padded)[:-1])
        self._host_parts = [part[:size] for part, size in zip(host_parts, sizes, strict=True)]
        device_parts = torch.split(self._device, padded)
        parts = [part[:size] for part, size in zip(device_parts, sizes, strict=True)]
        self.token_ids, self.positions, self.rows, extents, *starts = parts
        self.extents = extents.view(-1, 3)
        self.extent_start, self.query_start = starts

    def fits(self, batch: Batch) -> bool:
        num_extents = sum(len(own) for own in batch.extents)
        return batch.num_tokens <= self.num_tokens and num_extents <= self.max_extents

    def fill(self, batch: Batch) -> None:
        """Copy `batch` in, padded, in one transfer."""
        if self._is_read is not None:
            self._is_read.synchronize()  # the transfer of the step before may still wait its turn
        token_ids, positions, rows, extents, extent_start, query_start = self._host_parts
        count = batch.num_tokens
        for target, source, padding in (
            (token_ids, batch.token_ids, 0),
            (positions, batch.positions, 0),
            (rows, batch.rows, self._scratch_row),
        ):
            target[:count] = source.numpy()
            target[count:] = padding
        flat = [
            (extent.first_row, extent.num_rows, extent.first_position)
            for own in batch.extents
            for extent in own
        ]
        extents[: 3 * len(flat)] = list(chain.from_iterable(flat))
        ends = np.cumsum([0, *map(len, batch.extents)])
        extent_start[: len(ends)] = ends
        extent_start[len(ends) :] = ends[-1]
        query_start[: len(batch.query_start)] = batch.query_start
        query_start[len(batch.query_start) :] = count
        query_start[-1] = self.num_tokens
        self._device.copy_(self._host, non_blocking=True)
        if self._is_read is not None:
            self._is_read.record()

    def table(self, max_readable: int) -> AttentionTable:
        return AttentionTable(
            extents=self.extents,
            extent_start=self.extent_start,
            query_start=self.query_start,
            positions=self.positions,
            max_queries=1,
            max_readable=max_readable,
        )


class StepGraphs:
    """Forward passes of one model over one arena, recorded per bucket of tokens.

    `scratch_row` is a row of the arena that no sequence owns. Steps with tokens at `max_positions`
    and beyond are not replayed.
    """

    def __init__(
        self,
        model: Model,
        arena: KVArena,
        scratch_row: int,
        max_positions: int,
        recorder: Callable[[Pass], Pass] = capture,
    ) -> None:
        self._model = model
        self._arena = arena
        self._scratch_row = scratch_row
        self._max_positions = max_positions
        self._recorder = recorder
        everywhere = torch.arange(max_positions, device=model.device)
        # one tensor, so that a step gathers once: [2, max_positions, D/2]
        self._angles = torch.stack(model.rotary.at(everywhere, max_positions - 1))
        self._recorded: dict[int, tuple[StaticBatch, Pass]] = {}

    def warm_up(self) -> None:
        """Record all buckets: seconds of compilation that no caller waits for."""
        with torch.inference_mode():
            for num_tokens in BUCKETS:
                self._bucket(num_tokens)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor | None:
        """`Model.forward` of a step that fits a bucket, else None.

        The logits are valid until the next call.
        """
        num_tokens = next((size for size in BUCKETS if size >= batch.num_tokens), None)
        if num_tokens is None or int(batch.positions.max()) >= self._max_positions:
            return None
        static, replay = self._bucket(num_tokens)
        if not static.fits(batch):
            return None
        static.fill(batch)
        logits = replay()
        wanted = batch.logit_tokens
        first, count = (int(wanted[0]), len(wanted)) if len(wanted) else (0, 0)
        if torch.equal(wanted, torch.arange(first, first + count)):
            return logits[first : first + count]  # the usual case, and it starts no kernel
        return logits[wanted.to(self._model.device)]

    def _bucket(self, num_tokens: int) -> tuple[StaticBatch, Pass]:
        if num_tokens not in self._recorded:
            static = StaticBatch(num_tokens, self._scratch_row, self._model.device)
            empty = torch.zeros(0, dtype=torch.int64)
            static.fill(Batch(empty, empty, empty, (0,), (), empty))
            self._recorded[num_tokens] = (static, self._recorder(lambda: self._run(static)))
        return self._recorded[num_tokens]

    def _run(self, static: StaticBatch) -> torch.Tensor:
        """Logits [num_tokens, V] of every token of the bucket."""
        cos, sin = self._angles.index_select(1, static.positions)
        every: Any = slice(None)  # all tokens, in place
        return self._model.compute(
            static.token_ids,
            static.rows,
            cos,
            sin,
            static.table(self._max_positions),
            every,
            self._arena,
        )
