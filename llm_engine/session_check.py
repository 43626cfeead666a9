"""What a session may ask for: all of it is checked before the engine's thread sees it."""

from __future__ import annotations

from typing import Any

from llm_engine.errors import BadSessionConfig
from llm_engine.events import SessionConfig, SpeculationTrigger, SuffixPolicy
from llm_engine.sampling import check_sampling

_TYPES: dict[str, type] = {
    "seed": int,
    "suffix_policy": SuffixPolicy,  # a plain string is none: it would be taken for another policy
    "draft_policy": SuffixPolicy,
    "max_draft_tokens": int,
    "draft_first_sentence": bool,
    "stop": tuple,
    "cache_scope": str,
    "trigger": SpeculationTrigger,
    "use_ngram_pool": bool,
    "score_snapshots": bool,
    "max_turn_draft_tokens": int,
    "keep_drafts": bool,
}


def check_session(config: SessionConfig) -> None:
    """Raises BadSessionConfig, BadSamplingParams: for the first setting that cannot work."""
    check_sampling(config.sampling)
    for name, wanted in _TYPES.items():
        value: Any = getattr(config, name)
        is_bool_for_int = wanted is int and isinstance(value, bool)
        if not isinstance(value, wanted) or is_bool_for_int:
            raise BadSessionConfig(name, value, f"of type {wanted.__name__}")
    for name in ("max_draft_tokens", "max_turn_draft_tokens"):
        if getattr(config, name) < 0:
            raise BadSessionConfig(name, getattr(config, name), "0 or more")
    for text in config.stop:
        if not isinstance(text, str) or not text:
            raise BadSessionConfig("stop", config.stop, "a tuple of strings, none of them empty")
