from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import PromptFileInvalid
from app.prompt_spec import SHIPPED, default_prompt, load_prompt


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED.glob("*.toml")])
def test_every_shipped_prompt_loads_by_its_name(name: str) -> None:
    assert load_prompt(name).system


def test_the_default_prompt_is_short() -> None:
    assert len(default_prompt().system) < 200


def test_the_museum_has_long_content_after_the_callers_words() -> None:
    assert len(load_prompt("museum").after.split()) > 120


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("system = 1", "system must be a string, not int"),
        ("before = 'x'", "system is missing"),
        ("system = 'x'\nafterwards = 'y'", "unknown key 'afterwards'"),
        ("system =", "Invalid value"),
        ("\x00\xff", "prompt"),
    ],
)
def test_a_wrong_prompt_file_says_what_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "prompt.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(PromptFileInvalid, match=said):
        load_prompt(file)


def test_a_missing_prompt_names_the_shipped_ones() -> None:
    with pytest.raises(PromptFileInvalid, match="assistant, museum"):
        load_prompt("circus")
