from __future__ import annotations

import pytest

from llm_engine.engine_config import EngineConfig


@pytest.mark.parametrize("name", ["max_sessions", "num_rows", "slot_rows", "max_step_tokens"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        EngineConfig(**{name: 0})


def test_a_reply_must_have_room() -> None:
    with pytest.raises(ValueError, match="min_reply_tokens must lie in 1..99, got 100"):
        EngineConfig(max_sequence_tokens=100, min_reply_tokens=100)
