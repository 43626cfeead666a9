from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from app import model_hub
from app.errors import CacheUnusable, IndexUnreachable
from app.model_hub import fetch_snapshot
from app.model_table import ModelKind


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The file patterns each snapshot was asked for."""
    patterns: list[list[str]] = []

    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        patterns.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return patterns


@pytest.mark.parametrize("kind", [ModelKind.LLM, ModelKind.ASR])
def test_no_pickle_and_no_code_is_ever_asked_for(kind: ModelKind, asked: list[list[str]]) -> None:
    fetch_snapshot("owner/name", kind)
    bad = ["pytorch_model.bin", "model.pt", "model.pth", "model.pkl", "model.ckpt", "modeling.py"]
    assert not [name for name in bad for pattern in asked[0] if fnmatch(name, pattern)]


def test_one_file_of_a_repository_is_asked_for_by_name(
    asked: list[list[str]], tmp_path: Path
) -> None:
    assert fetch_snapshot("owner/name", ModelKind.LLM, "a.gguf") == tmp_path / "a.gguf"
    assert asked == [["a.gguf"]]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (LocalEntryNotFoundError("no connection and nothing cached\nmore"), IndexUnreachable),
        (PermissionError(13, "denied"), CacheUnusable),
    ],
)
def test_failures_of_the_client_become_ours(
    raised: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(expected):
        fetch_snapshot("owner/name", ModelKind.LLM)


def test_a_hub_that_does_not_answer_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = huggingface_hub.snapshot_download

    def on_a_closed_port(repo_id: str, allow_patterns: list[str]) -> str:
        # port 9 of this machine: nobody listens
        return real(
            repo_id,
            allow_patterns=allow_patterns,
            endpoint="http://127.0.0.1:9",
            cache_dir=tmp_path,
        )

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(model_hub.huggingface_hub, "snapshot_download", on_a_closed_port)
    with pytest.raises(IndexUnreachable, match="the Hugging Face hub for owner/name"):
        fetch_snapshot("owner/name", ModelKind.LLM)
