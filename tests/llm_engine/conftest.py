"""Tokenizers of the supported families, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_engine.tokenizer import Tokenizer
from tests.llm_engine.families import FAMILIES, Family, load_family


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer(smollm2_path)


@pytest.fixture(scope="session", params=FAMILIES)
def family(
    request: pytest.FixtureRequest,
    smollm2_path: Path,
    tokenizer_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Family:
    """Each supported family in turn, beside transformers' tokenizer."""
    scratch = tmp_path_factory.mktemp(request.param)
    return load_family(request.param, smollm2_path, tokenizer_dir, scratch)
