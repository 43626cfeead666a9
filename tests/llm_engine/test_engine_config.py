from __future__ import annotations

import pytest

from llm_engine.engine_config import ROWS_PER_SESSION, EngineConfig
from llm_engine.errors import TooManySessions
from tests.llm_engine.engine_rig import make_engine, open_session


@pytest.mark.parametrize("name", ["max_sessions", "num_rows", "slot_rows", "max_step_tokens"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        EngineConfig(**{name: 0})


def test_a_reply_must_have_room() -> None:
    with pytest.raises(ValueError, match="min_reply_tokens must lie in 1..99, got 100"):
        EngineConfig(max_sequence_tokens=100, min_reply_tokens=100)


def test_the_default_has_as_many_rows_as_its_sessions_need() -> None:
    config = EngineConfig()
    assert config.num_rows == config.max_sessions * ROWS_PER_SESSION


def test_an_engine_takes_as_many_sessions_as_it_is_told() -> None:
    engine = make_engine(max_sessions=40, num_rows=40 * ROWS_PER_SESSION)
    for _ in range(40):
        open_session(engine)
    with pytest.raises(TooManySessions, match="40 sessions are open"):
        open_session(engine)
