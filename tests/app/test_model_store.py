from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from app import model_hub
from app.errors import IndexUnreachable, ModelNotFound, UnknownModel
from app.model_cache import ModelCache
from app.model_store import resolve_asr, resolve_llm, resolve_smart_turn
from app.model_table import ModelEntry, ModelKind


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids that the resolvers asked the cache for; nothing is fetched."""
    ids: list[str] = []

    def pull(self: ModelCache, entry: ModelEntry, on_progress: object = None) -> Path:
        ids.append(entry.id)
        return Path("/cache") / entry.id

    monkeypatch.setattr(ModelCache, "pull", pull)
    return ids


def test_nothing_named_means_the_defaults(pulled: list[str]) -> None:
    resolve_llm(None)
    resolve_asr(None)
    resolve_smart_turn(None)
    assert pulled == ["smollm2-135m-instruct", "whisper-tiny.en", "smart-turn-v3.2"]


def test_an_id_of_the_table_is_pulled(pulled: list[str]) -> None:
    assert resolve_asr("whisper-base") == Path("/cache/whisper-base")


def test_an_id_of_another_kind_is_refused_with_those_of_the_right_one(pulled: list[str]) -> None:
    with pytest.raises(UnknownModel, match=r"unknown llm 'whisper-base'.*smollm2-135m-instruct"):
        resolve_llm("whisper-base")
    assert pulled == []


def test_an_unknown_word_is_refused_with_the_known_ids() -> None:
    with pytest.raises(UnknownModel, match=r"'huge'.*whisper-tiny\.en, whisper-base.*small\.en"):
        resolve_asr("huge")
    with pytest.raises(UnknownModel, match=r"unknown llm 'small\.en'"):
        resolve_llm("small.en")


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("small.en", "Systran/faster-whisper-small.en"),
        ("large-v3", "Systran/faster-whisper-large-v3"),
        ("distil-large-v3.5", "distil-whisper/distil-large-v3.5-ct2"),
    ],
)
def test_faster_whispers_names_are_fetched_from_the_hub(
    name: str, repository: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ModelKind]] = []

    def fetch(repo_id: str, kind: ModelKind, file_name: str | None) -> Path:
        asked.append((repo_id, kind))
        return tmp_path

    monkeypatch.setattr(model_hub, "fetch_snapshot", fetch)
    for file in ("config.json", "model.bin"):
        (tmp_path / file).touch()
    assert resolve_asr(name) == tmp_path
    assert asked == [(repository, ModelKind.ASR)]


def test_a_hub_that_cannot_be_reached_for_such_a_name_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(IndexUnreachable, match=r"faster-whisper-small\.en: no connection"):
        resolve_asr("small.en")


def test_local_files_and_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    onnx = tmp_path / "turn.onnx"
    for file in ("config.json", "model.safetensors", "model.bin", "model.gguf", "turn.onnx"):
        (tmp_path / file).touch()
    assert resolve_llm(gguf) == gguf
    assert resolve_llm(str(tmp_path)) == tmp_path
    assert resolve_asr(str(tmp_path)) == tmp_path
    assert resolve_smart_turn(str(onnx)) == onnx


@pytest.mark.parametrize("name", ["./absent", "/absent/model.gguf", "absent.gguf", Path("absent")])
def test_a_path_that_does_not_exist_is_named(name: str | Path) -> None:
    with pytest.raises(ModelNotFound, match="absent"):
        resolve_llm(name)


def test_a_folder_without_a_model_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json and \*\.safetensors"):
        resolve_llm(tmp_path)
    with pytest.raises(ModelNotFound, match=r"model\.bin and config\.json"):
        resolve_asr(tmp_path)
    with pytest.raises(ModelNotFound, match=r"one \.onnx file"):
        resolve_smart_turn(tmp_path)


def test_a_pickled_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "config.json").touch()
    with pytest.raises(ModelNotFound, match="must be .gguf"):
        resolve_llm(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match="safetensors"):
        resolve_llm(tmp_path)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/name", ("owner/name", ModelKind.LLM, None)),
        ("owner/name-GGUF/model.Q4_K.gguf", ("owner/name-GGUF", ModelKind.LLM, "model.Q4_K.gguf")),
    ],
)
def test_owner_and_name_go_to_the_hub(
    name: str, asked: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("config.json", "model.safetensors", "model.gguf"):
        (tmp_path / file).touch()
    calls: list[tuple[object, ...]] = []

    def fetch_snapshot(*arguments: object) -> Path:
        calls.append(arguments)
        return tmp_path / "model.gguf" if arguments[2] else tmp_path

    monkeypatch.setattr(model_hub, "fetch_snapshot", fetch_snapshot)
    resolve_llm(name)
    assert calls == [asked]
