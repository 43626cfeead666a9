"""The engine's bench on a small random model: every figure is there and makes sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.bench import engine as bench
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.random_model import random_model
from llm_engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def made(smollm2_path: Path) -> bench.EngineBench:
    tokenizer = Tokenizer(smollm2_path)
    model = random_model("smollm2", 0, vocab_size=tokenizer.vocab_size)
    engine = Engine(model, tokenizer, EngineConfig(num_rows=8192))
    return bench.EngineBench(engine, tokenizer, repeats=2)


@pytest.mark.models
def test_an_equal_commit_is_answered_sooner_than_any_pass(made: bench.EngineBench) -> None:
    assert 0 < made.commit_ready_ms() < made.tail_revision()["full_prefill_ms"]


@pytest.mark.models
def test_what_is_kept_saves_work(made: bench.EngineBench) -> None:
    assert made.tail_revision()["tail_revision_speedup"] > 1
    assert made.middle_edit()["middle_rotate_speedup"] > 1
    assert made.shared_prefix()["prefix_share_ratio"] < 1


@pytest.mark.models
def test_streams_are_accounted_and_sessions_given_back(made: bench.EngineBench) -> None:
    figures: dict[str, Any] = (
        made.partial_streams(bench.recorded_turns()[:3]) | made.first_token_under_load()
    )
    assert figures["tokens_per_pass"] > 0 and figures["drafted_tokens"] > 0
    assert 0 < figures["commit_passes_per_token"] <= 1
    assert figures["first_token_alone_p90_ms"] > 0
    assert figures["longest_commit_wait_ms"] >= 0
    assert made.engine.stats().num_sessions == 0
    made.engine.check_integrity()
