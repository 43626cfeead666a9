from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from llm_engine.errors import BadSessionConfig
from llm_engine.events import SamplingParams, SessionConfig, SpeculationTrigger, SuffixPolicy
from llm_engine.sampling import BadSamplingParams
from llm_engine.session_check import _TYPES, check_session


def test_what_can_work_is_accepted() -> None:
    check_session(SessionConfig())
    check_session(
        SessionConfig(
            seed=-3,
            suffix_policy=SuffixPolicy.PADDED,
            max_draft_tokens=0,
            stop=("\n", "User:"),
            trigger=SpeculationTrigger.STABLE,
        )
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": "x"}, "seed is 'x'; it must be of type int"),
        ({"suffix_policy": "rotate"}, "suffix_policy is 'rotate'; it must be of type SuffixPolicy"),
        ({"trigger": "off"}, "trigger is 'off'; it must be of type SpeculationTrigger"),
        ({"max_draft_tokens": -1}, "max_draft_tokens is -1; it must be 0 or more"),
        ({"max_turn_draft_tokens": True}, "max_turn_draft_tokens is True; it must be of type int"),
        ({"stop": "User:"}, "stop is 'User:'; it must be of type tuple"),
        ({"stop": ("a", "")}, r"stop is \('a', ''\); it must be a tuple of strings, none of them"),
        ({"stop": (7,)}, r"stop is \(7,\); it must be a tuple of strings"),
        ({"cache_scope": None}, "cache_scope is None; it must be of type str"),
        ({"keep_drafts": 1}, "keep_drafts is 1; it must be of type bool"),
    ],
)
def test_what_cannot_is_refused_by_name_and_value(settings: Any, message: str) -> None:
    with pytest.raises(BadSessionConfig, match=message):
        check_session(SessionConfig(**settings))


def test_sampling_is_checked_too() -> None:
    with pytest.raises(BadSamplingParams):
        check_session(SessionConfig(sampling=SamplingParams(top_p=0)))


def test_no_setting_is_left_out() -> None:
    assert _TYPES.keys() | {"sampling"} == {field.name for field in fields(SessionConfig)}
