"""How far the inexact suffix policies stray from exact recompute, and what they save.

A prompt is drafted on, a word is added before its long suffix, and the same tokens are then scored
behind the prompt once per policy. Legend: N reply tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.kv import KVArena
from kernels.rope_shift import rope_shift
from llm_engine.batch import Batch
from llm_engine.events import SuffixPolicy
from llm_engine.kv_cache import KVCache
from llm_engine.layout import Layout
from llm_engine.model import Model
from llm_engine.rotary import inverse_frequencies
from llm_engine.sequence_kv import Piece, SequenceKV

MAX_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Drift:
    """One prompt under one policy, against exact recompute of the same prompt."""

    policy: SuffixPolicy
    num_tokens: int  # reply tokens compared
    num_agreeing: int  # of those, whose best token is the same
    divergence: float  # mean KL(exact || policy) in nats
    is_equal_reply: bool
    num_survived: int  # tokens of this policy's greedy reply that begin the exact one
    seconds: float  # of the pass that brings the edit, up to the first token's logits


class PolicyProbe:
    """Runs prompts of one model through the row accounting of `SequenceKV`, one at a time."""

    def __init__(self, model: Model, slot_rows: int = 32) -> None:
        self._model = model
        self._slot_rows = slot_rows
        self._arena: KVArena = model.new_arena(MAX_ROWS)
        config = model.config
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)

    def compare(self, before: Layout, after: Layout, num_tokens: int) -> list[Drift]:
        """Drift of every policy for the change from `before` to `after`."""
        exact = SuffixPolicy.RECOMPUTE
        kv, _, seconds = self._edited(before, after, exact)
        reply = self._greedy(kv, after, num_tokens)
        truth = self._score(kv, after, reply)
        drifts = [Drift(exact, len(reply), len(reply), 0.0, True, len(reply), seconds)]
        for policy in (SuffixPolicy.ROTATE, SuffixPolicy.PADDED):
            kv, _, seconds = self._edited(before, after, policy)
            own = self._greedy(kv, after, num_tokens)
            scores = self._score(kv, after, reply)
            agreeing = int((scores.argmax(-1) == truth.argmax(-1)).sum())
            divergence = torch.nn.functional.kl_div(
                scores.log_softmax(-1),
                truth.log_softmax(-1),
                log_target=True,
                reduction="batchmean",
            )
            pairs = zip(own, reply, strict=True)
            survived = next((i for i, (a, b) in enumerate(pairs) if a != b), len(reply))
            drifts.append(
                Drift(
                    policy,
                    len(reply),
                    agreeing,
                    float(divergence),
                    own == reply,
                    survived,
                    seconds,
                )
            )
        return drifts

    def _edited(
        self, before: Layout, after: Layout, policy: SuffixPolicy
    ) -> tuple[SequenceKV, torch.Tensor, float]:
        """The rows of `after`, reached from those of `before`; its last logits[V] and the time."""
        kv = SequenceKV(KVCache(MAX_ROWS), "", self._slot_rows)
        kv.rebuild(before, policy, same_turn=False)
        self._fill(kv, before)
        begin = time.perf_counter()
        moves = kv.rebuild(after, policy, same_turn=True)
        assert not moves.copies, "the slot is to keep its extent"
        for first_row, num_rows, delta in moves.shifts:
            angles = self._frequencies * delta
            rope_shift(self._arena, first_row, num_rows, angles.cos(), angles.sin())
        logits = self._fill(kv, after)
        return kv, logits, time.perf_counter() - begin

    def _fill(self, kv: SequenceKV, layout: Layout) -> torch.Tensor:
        """Compute what is missing and the last token; its logits[V]."""
        last = len(layout.token_ids) - 1
        ranges = [(start, min(stop, last)) for start, stop in kv.missing() if start < last]
        pieces = [
            piece
            for start, stop in (*ranges, (last, last + 1))
            for piece in kv.pieces(start, layout.token_ids[start:stop])
        ]
        return self._run(kv, pieces, 1)[0]

    def _score(self, kv: SequenceKV, layout: Layout, reply: Sequence[int]) -> torch.Tensor:
        """Logits[N, V] for every token of `reply`, given the prompt and the tokens before it."""
        start = len(layout.token_ids)
        kv.truncate(start)
        ids = (layout.token_ids[-1], *reply[:-1])
        return self._run(kv, kv.pieces(start - 1, ids), len(reply))

    def _greedy(self, kv: SequenceKV, layout: Layout, num_tokens: int) -> list[int]:
        start = len(layout.token_ids)
        kv.reserve_reply(num_tokens)
        reply: list[int] = []
        token = layout.token_ids[-1]
        for index in range(num_tokens):
            logits = self._run(kv, kv.pieces(start - 1 + index, (token,)), 1)[0]
            token = int(logits.argmax())
            reply.append(token)
        return reply

    def _run(self, kv: SequenceKV, pieces: Sequence[Piece], num_logits: int) -> torch.Tensor:
        ids = [token for piece in pieces for token in piece.token_ids]
        spans = [(piece.extent, piece.offset, len(piece.token_ids)) for piece in pieces]
        positions = [e.first_position + o + i for e, o, count in spans for i in range(count)]
        rows = [e.first_row + o + i for e, o, count in spans for i in range(count)]
        wanted = torch.arange(len(ids) - num_logits, len(ids))
        batch = Batch(
            torch.tensor(ids),
            torch.tensor(positions),
            torch.tensor(rows),
            (0, len(ids)),
            (kv.views(pieces),),
            wanted,
        )
        logits = self._model.forward(batch, self._arena).clone()
        kv.written(pieces)
        return logits
