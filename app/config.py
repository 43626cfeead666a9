"""The server's configuration: environment variables `FORESPEAK_…`, overridden by arguments.

The only reader of the environment. Frozen once resolved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.errors import BadConfig
from app.timeline import Prices
from llm_engine.engine_config import KVDtype

Dtype = Literal["auto", "float32", "bfloat16", "int8", "int4"]


class Threads(BaseSettings):
    """Thread counts per library, in one place: everything competes for the same cores."""

    model_config = SettingsConfigDict(env_prefix="FORESPEAK_THREADS_", frozen=True, extra="forbid")

    engine: int = Field(default=2, ge=1, le=256)
    recogniser: int = Field(default=2, ge=1, le=64)  # within one decode
    recogniser_workers: int = Field(default=1, ge=1, le=64)  # decodes at once
    turn_check: int = Field(default=1, ge=1, le=16)
    voice: int = Field(default=1, ge=1, le=16)


class AppConfig(BaseSettings):
    """Everything an operator may set, with the defaults that `scripts/run` uses."""

    model_config = SettingsConfigDict(env_prefix="FORESPEAK_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    token: str | None = None
    allowed_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    max_sessions: int = Field(default=8, ge=1, le=4096)

    llm: str | None = None  # id, folder, GGUF file or Hugging Face id; None: the default model
    asr: str | None = None  # id, folder, Hugging Face id or faster-whisper's name, e.g. "small.en"
    asr_device: Literal["cpu", "cuda", "auto"] = "cpu"
    asr_compute_type: str = "int8"  # one that CTranslate2 has on that device
    # finals whose mean log probability is below it are decoded again, slowly; None: never
    second_opinion_below: float | None = Field(default=None, le=0.0)
    dtype: Dtype = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # of the language model; auto: a GPU's if any
    kv_dtype: KVDtype = "float"  # int8: half the memory of 16 bits per token
    prompt: str | None = None  # a prompt file; None: the default voice-assistant prompt
    speech: Literal["hibari", "none"] = "hibari"

    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    seed: int = Field(default=0, ge=0)
    max_reply_tokens: int = Field(default=96, ge=1, le=4096)
    max_draft_tokens: int = Field(default=48, ge=0, le=4096)

    price_prompt: float | None = Field(default=None, ge=0)  # per million tokens
    price_cached_prompt: float | None = Field(default=None, ge=0)
    price_reply: float | None = Field(default=None, ge=0)

    threads: Threads = Field(default_factory=Threads)

    @property
    def prices(self) -> Prices:
        return Prices(self.price_prompt, self.price_cached_prompt, self.price_reply)


def load_config(**options: Any) -> AppConfig:
    """The environment's settings, overridden by `options` that are not None.

    Raises BadConfig naming every setting that is wrong or not known.
    """
    if problems := _unknown_variables(os.environ):
        raise BadConfig(problems)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return AppConfig(**given)
    except ValidationError as error:
        raise BadConfig(
            [
                f"{'.'.join(map(str, problem['loc']))}={problem['input']!r:.80}: {problem['msg']}"
                for problem in error.errors()
            ]
        ) from error


def _unknown_variables(names: Iterable[str]) -> list[str]:
    """Of those that look like settings: a typo must not silently leave the default in place."""
    known = {"FORESPEAK_MODELS_DIR"}
    for part in (AppConfig, Threads):
        known |= {
            f"{part.model_config['env_prefix']}{field.upper()}" for field in part.model_fields
        }
    problems = []
    for name in sorted(names):
        if name.upper().startswith("FORESPEAK_") and name.upper() not in known:
            likely = get_close_matches(name.upper(), known, 1)
            hint = f"did you mean {likely[0]}?" if likely else "app/config.py lists all"
            problems.append(f"{name}: no such setting; {hint}")
    return problems
