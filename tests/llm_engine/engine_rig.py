"""A small engine to drive step by step: random weights, a byte tokenizer, recorded events."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.events import (
    DraftChanged,
    EngineEvent,
    ReplyDelta,
    ReplyDone,
    SessionConfig,
    SessionFailed,
    SnapshotScored,
)
from llm_engine.model import Model
from llm_engine.prompt import Segment, Snapshot
from llm_engine.random_model import random_model
from llm_engine.transformers_peer import twin_of
from tests.llm_engine.twin import twin_logits

TIE = 1e-3  # of float32: scores closer than this may fall either way


class ByteTokenizer:
    """Token i < 256 is byte i. A few ids end a message or a sentence, so that replies do end."""

    is_byte_level = True
    vocab_size = 259
    eos_ids = frozenset({256, 257, 40, 80})
    sentence_end_ids = frozenset({46, 63, 33, 120, 200})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def is_punctuation(self, token_id: int) -> bool:
        return token_id in self.sentence_end_ids


class Clock:
    """Time that moves by a millisecond whenever it is asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


@cache
def tiny_model(family: str = "llama2", seed: int = 0) -> Model:
    return random_model(family, seed)


@cache
def tiny_twin(family: str = "llama2", seed: int = 0) -> Any:
    return twin_of(tiny_model(family, seed))


@dataclass
class Events:
    """What a session was told, sorted by kind."""

    all: list[EngineEvent] = field(default_factory=list)
    deltas: dict[int, list[ReplyDelta]] = field(default_factory=lambda: defaultdict(list))
    done: dict[int, ReplyDone] = field(default_factory=dict)
    drafts: list[DraftChanged] = field(default_factory=list)
    scores: list[SnapshotScored] = field(default_factory=list)
    failures: list[SessionFailed] = field(default_factory=list)

    def __call__(self, event: EngineEvent) -> None:
        self.all.append(event)
        match event:
            case ReplyDelta():
                assert event.turn not in self.done, "a delta after the reply's end"
                assert event.first_index == len(self.reply(event.turn)), "a gap in the reply"
                self.deltas[event.turn].append(event)
            case ReplyDone():
                assert event.turn not in self.done, "a reply ended twice"
                self.done[event.turn] = event
            case DraftChanged():
                self.drafts.append(event)
            case SnapshotScored():
                self.scores.append(event)
            case SessionFailed():
                self.failures.append(event)

    def reply(self, turn: int) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[turn] for token in delta.token_ids)

    def text(self, turn: int) -> str:
        return "".join(delta.text for delta in self.deltas[turn])


def make_engine(model: Model | None = None, **sizes: Any) -> Engine:
    config = EngineConfig(**{"num_rows": 4096, "slot_rows": 8, **sizes})
    tokenizer: Any = ByteTokenizer()
    return Engine(model or tiny_model(), tokenizer, config, Clock())


def open_session(engine: Engine, **settings: Any) -> tuple[str, Events]:
    events = Events()
    settings = {"use_ngram_pool": True, **settings}  # the harder case: more is proposed
    return engine.open(SessionConfig(**settings), events), events


def run(engine: Engine, max_steps: int = 10_000) -> int:
    """Step until nothing is left to do (or `max_steps`); the books are checked; -> steps made."""
    for step in range(max_steps):
        if engine.step() is None:
            engine.check_integrity()
            return step
    engine.check_integrity()
    return max_steps


def prompt(
    revision: int,
    slot: tuple[int, ...],
    *,
    prefix: tuple[int, ...] = (1, 2, 3),
    history: tuple[tuple[int, ...], ...] = (),
    suffix: tuple[int, ...] = (10, 11),
    at_pause: bool = False,
) -> Snapshot:
    segments = [Segment("system", "prefix", prefix)] if prefix else []
    segments += [Segment(f"history.{i}", "history", ids) for i, ids in enumerate(history)]
    segments += [Segment("slot", "slot", slot), Segment("suffix", "suffix", suffix)]
    return Snapshot(revision, tuple(segments), at_pause)


def greedy_twin(
    ids: tuple[int, ...], max_tokens: int, family: str = "llama2", seed: int = 0
) -> tuple[list[int], list[float]]:
    """The twin's reply, and for every token (the end of message included) the lead of the best."""
    twin = tiny_twin(family, seed)
    reply: list[int] = []
    leads: list[float] = []
    while len(reply) < max_tokens:
        best = torch.topk(twin_logits(twin, [*ids, *reply])[-1], 2)
        leads.append(float(best.values[0] - best.values[1]))
        token = int(best.indices[0])
        if token in ByteTokenizer.eos_ids:
            break
        reply.append(token)
    return reply, leads


def first_difference(a: tuple[int, ...] | list[int], b: tuple[int, ...] | list[int]) -> int | None:
    """Index of the first token that differs, or where the shorter one ends; None if equal."""
    if list(a) == list(b):
        return None
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def assert_rows_equal_fresh_prefill(engine: Engine, session_id: str, tolerance: float) -> int:
    """K/V of a session's readable rows against one forward pass over prompt and reply; -> rows.

    Not every row need be there: a reply known from an earlier draft is delivered without a pass.
    """
    sequence = engine._sessions._sequences[session_id]
    ids = [*sequence.prompt_ids, *sequence.reply.draft.token_ids]
    rows: list[int] = []
    places: list[int] = []
    for extent in sequence.kv._extents():
        first, count = extent.first_position, extent.num_rows
        assert extent.exact or not count, "rows of an approximate draft were left behind"
        assert list(extent.token_ids) == ids[first : first + count], "rows of other tokens"
        rows += range(extent.first_row, extent.first_row + count)
        places += range(first, first + count)
    assert sorted(places) == sorted(set(places)), "two rows for one token"
    model, count = engine._runner.model, len(ids)
    fresh = model.new_arena(count)
    positions = torch.arange(count)
    views = ((ExtentView(0, count, 0),),)
    wanted = torch.tensor([count - 1])
    batch = Batch(torch.tensor(ids), positions, positions, (0, count), views, wanted)
    model.forward(batch, fresh)
    for ours, theirs in (
        (engine._runner.arena.keys, fresh.keys),
        (engine._runner.arena.values, fresh.values),
    ):
        close = {"atol": tolerance, "rtol": 0}
        torch.testing.assert_close(ours[:, rows].float(), theirs[:, places].float(), **close)
    return len(rows)
