from __future__ import annotations

from pathlib import Path

import pytest

from app.config import AppConfig
from app.errors import BadConfig, ModelNotFound, PromptFileInvalid
from app.runtime import Runtime, _load_ears
from asr.errors import AsrError, UnsupportedComputeType
from llm_engine.engine_config import EngineConfig
from llm_engine.errors import EngineError


def test_a_wrong_model_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nothing-here"):
        Runtime.load(AppConfig(llm=str(tmp_path / "nothing-here.gguf")))


@pytest.mark.models
def test_a_wrong_prompt_file_is_named_before_anything_is_loaded(
    smollm2_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(PromptFileInvalid, match="missing.toml"):
        Runtime.load(AppConfig(prompt=str(tmp_path / "missing.toml")))


def test_a_corrupt_model_file_is_a_typed_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 100)
    with pytest.raises((ModelNotFound, EngineError, ValueError), match="broken"):
        Runtime.load(AppConfig(llm=str(broken)))


@pytest.mark.models
def test_the_engine_is_what_the_configuration_says(smollm2_path: Path) -> None:
    config = AppConfig(device="cpu", kv_dtype="int8", speech="none", max_sessions=63)
    runtime = Runtime.load(config)
    assert runtime.engine.config.kv_dtype == "int8"
    assert runtime.engine.config.max_sessions > 63
    assert runtime.engine.config.num_rows == 2 * EngineConfig().num_rows  # of 32 sessions
    assert runtime.engine.stats().num_sessions == 0


@pytest.mark.models
def test_replies_too_long_for_any_prompt_are_refused_with_the_longest_that_fits(
    smollm2_path: Path,
) -> None:
    with pytest.raises(BadConfig, match=r"max_reply_tokens=4096: .* 1[89]\d\d at most"):
        Runtime.load(AppConfig(max_reply_tokens=4096, speech="none"))


@pytest.mark.models
def test_a_prompt_that_leaves_no_room_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "endless.toml"
    file.write_text(f"system = '{'very ' * 3000}long'")
    with pytest.raises(BadConfig, match=r"endless.toml.* 1488 tokens at most"):
        Runtime.load(AppConfig(prompt=str(file), speech="none"))


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"asr_compute_type": "int3"}, UnsupportedComputeType),
        ({"asr_device": "cuda", "asr_compute_type": "int3"}, AsrError),  # with a GPU or without
    ],
)
def test_how_the_recogniser_computes_is_the_configurations(
    setting: dict[str, str], error: type[AsrError], tmp_path: Path
) -> None:
    for file in ("config.json", "model.bin"):
        (tmp_path / file).touch()
    with pytest.raises(error, match=r"int3|cuda"):
        _load_ears(AppConfig(asr=str(tmp_path), **setting))  # type: ignore[arg-type]
