"""The engine over the Triton kernels, in the interpreter: one conversation, the torch tokens."""

from __future__ import annotations

import pytest

from kernels.dispatch import use_backend
from llm_engine.engine import Engine
from llm_engine.events import SamplingParams, SuffixPolicy
from llm_engine.random_model import random_model
from tests.llm_engine.engine_rig import make_engine, open_session, prompt, run

# a program of the interpreter takes milliseconds
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def converse(engine: Engine, **settings: object) -> list[tuple[int, ...]]:
    """Update, revise, commit, truncate, and a second turn on what was heard; both replies."""
    session, events = open_session(engine, **settings)
    first = (70, 71, 72, 73)
    engine.update(session, prompt(0, first[:2]))
    run(engine)
    engine.update(session, prompt(1, (70, 75, 72)))  # a word in the middle turned out otherwise
    run(engine)
    turn = engine.commit(session, prompt(2, first))
    run(engine)
    reply = events.reply(turn)
    heard = reply[: len(reply) // 2]
    engine.truncate(session, turn, len(heard))
    history = ((*first, 10, 11, *heard),)
    turn = engine.commit(session, prompt(3, (90, 91), history=history))
    run(engine)
    return [reply, events.reply(turn)]


@pytest.mark.parametrize(
    "family, dtype, kv_dtype, sampling, policy",
    [
        ("llama2", "float32", "float", SamplingParams(max_tokens=3), SuffixPolicy.RECOMPUTE),
        pytest.param(
            "mistral",
            "int4",
            "int8",
            SamplingParams(max_tokens=3, temperature=0.8, top_p=0.9, repetition_penalty=1.2),
            SuffixPolicy.ROTATE,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["greedy", "sampled int4 with int8 rows"],
)
def test_a_conversation_over_triton_kernels_gives_the_torch_tokens(
    family: str, dtype: str, kv_dtype: str, sampling: SamplingParams, policy: SuffixPolicy
) -> None:
    replies = {}
    for backend in ("torch", "triton"):
        with use_backend(backend):  # type: ignore[arg-type]
            model = random_model(family, 0, dtype=dtype, **SMALL)  # type: ignore[arg-type]
            engine = make_engine(model, num_rows=256, kv_dtype=kv_dtype)
            replies[backend] = converse(engine, sampling=sampling, draft_policy=policy)
    assert all(replies["torch"])
    assert replies["triton"] == replies["torch"]
