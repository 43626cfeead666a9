"""int8 K/V rows with the default model: their cost in accuracy, their size, their sharing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.events import SamplingParams, SessionConfig
from llm_engine.model import Model, load_model
from llm_engine.prompt import Segment, Snapshot
from llm_engine.tokenizer import Tokenizer
from tests.llm_engine.engine_rig import Events, run

pytestmark = pytest.mark.models

TEXT = (
    "The museum opens at nine in the morning and closes at six in the evening, except on "
    "Mondays, when it stays closed all day. Tickets cost twelve dollars for adults and five "
    "for children; members enter free of charge. The east wing shows paintings from the "
    "seventeenth century, among them a storm at sea that visitors remember for years. Guided "
    "tours start every hour beside the fountain in the main hall. Photographs are allowed, "
    "but please leave the flash off. If you lose something, ask at the desk near the "
    "entrance: umbrellas and gloves turn up there every week."
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer(smollm2_path)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return load_model(smollm2_path)


def log_probabilities(model: Model, ids: list[int], kv_dtype: torch.dtype | None) -> torch.Tensor:
    """[T, V] after every token of one pass."""
    places = torch.arange(len(ids))
    views = ((ExtentView(0, len(ids), 0),),)
    batch = Batch(torch.tensor(ids), places, places, (0, len(ids)), views, places)
    logits = model.forward(batch, model.new_arena(len(ids), kv_dtype))
    return torch.log_softmax(logits.double(), dim=-1)


def test_int8_rows_keep_the_distribution(model: Model, tokenizer: Tokenizer) -> None:
    ids = list(tokenizer.encode(TEXT))
    exact = log_probabilities(model, ids, None)
    rough = log_probabilities(model, ids, torch.int8)
    divergence = (exact.exp() * (exact - rough)).sum(dim=-1)  # KL(float || int8) per token
    agreement = (exact.argmax(-1) == rough.argmax(-1)).double().mean()
    print(f"\nKL {divergence.mean():.2e} (worst {divergence.max():.2e}), top-1 {agreement:.1%}")
    assert float(divergence.mean()) <= 0.01


def test_int8_rows_take_at_most_55_percent_of_bfloat16(model: Model) -> None:
    half = model.new_arena(64, torch.bfloat16).num_bytes
    assert model.new_arena(64, torch.int8).num_bytes <= 0.55 * half


def test_a_prefix_in_int8_rows_is_shared(model: Model, tokenizer: Tokenizer) -> None:
    config = EngineConfig(num_rows=2048, kv_dtype="int8")
    engine = Engine(model, tokenizer, config, time.monotonic)
    prefix = (tokenizer.encode(TEXT) * 5)[:500]
    asked, replies, seconds = tokenizer.encode("When does it open?"), [], []
    for _ in range(2):
        events = Events()
        session = engine.open(SessionConfig(sampling=SamplingParams(max_tokens=1)), events)
        segments = (Segment("system", "prefix", prefix), Segment("slot", "slot", asked))
        started = time.monotonic()
        turn = engine.commit(session, Snapshot(0, segments))
        run(engine)
        seconds.append(time.monotonic() - started)
        replies.append((events.reply(turn), events.done[turn].stats.computed_tokens))
    (first, first_computed), (second, second_computed) = replies
    assert first == second
    assert first_computed >= 500 > 2 * len(asked) >= second_computed
    assert seconds[1] <= 0.25 * seconds[0], seconds
