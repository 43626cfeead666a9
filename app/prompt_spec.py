"""The fixed parts of a prompt, and the TOML files (`--prompt FILE`) that hold them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from app.errors import PromptFileInvalid

SHIPPED = Path(__file__).parent / "prompts"


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """The system prompt, and what surrounds the caller's words within their message."""

    system: str
    before: str = ""
    after: str = ""


def load_prompt(path: Path | str) -> PromptSpec:
    """Read a prompt file, or a shipped prompt by its name. Raises PromptFileInvalid."""
    file = Path(path)
    if not file.exists() and file.parent == Path() and not file.suffix:
        file = SHIPPED / f"{path}.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        shipped = ", ".join(sorted(prompt.stem for prompt in SHIPPED.glob("*.toml")))
        raise PromptFileInvalid(file, f"no such file; shipped prompts: {shipped}") from cause
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise PromptFileInvalid(file, str(cause)) from cause
    known = [field.name for field in fields(PromptSpec)]
    for key, value in values.items():
        if key not in known:
            raise PromptFileInvalid(file, f"unknown key {key!r}; known: {', '.join(known)}")
        if not isinstance(value, str):
            raise PromptFileInvalid(file, f"{key} must be a string, not {type(value).__name__}")
    if not values.get("system", "").strip():
        raise PromptFileInvalid(file, "system is missing or empty")
    return PromptSpec(**values)


def default_prompt() -> PromptSpec:
    """The prompt of a plain voice assistant."""
    return load_prompt(SHIPPED / "assistant.toml")
