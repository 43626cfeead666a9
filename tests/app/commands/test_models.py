from __future__ import annotations

from pathlib import Path

import pytest

from app.__main__ import main
from app.commands.models import pull_missing
from app.model_cache import ModelCache, OnProgress, Progress
from app.model_table import MODELS, ModelEntry, default_entries


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Ids pulled; nothing is fetched, and the cache is an empty folder."""
    ids: list[str] = []

    def pull(self: ModelCache, entry: ModelEntry, on_progress: OnProgress, *, verify: bool) -> Path:
        ids.append(f"{entry.id} again" if verify else entry.id)
        on_progress(Progress(entry.id, "ready", entry.download_bytes, entry.download_bytes))
        return tmp_path

    monkeypatch.setenv("FORESPEAK_MODELS_DIR", str(tmp_path))
    monkeypatch.setattr(ModelCache, "pull", pull)
    return ids


def test_pull_alone_takes_what_a_start_needs(pulled: list[str]) -> None:
    assert main(["models", "pull"]) == 0
    assert pulled == ["smollm2-135m-instruct", "whisper-tiny.en", "smart-turn-v3.2"]


def test_pull_reads_what_is_there_again_when_asked_to(pulled: list[str]) -> None:
    assert main(["models", "pull", "--verify", "smart-turn-v3.2"]) == 0
    assert pulled == ["smart-turn-v3.2 again"]


def test_pull_for_tests_adds_the_tokenizers(pulled: list[str]) -> None:
    assert main(["models", "pull", "--test"]) == 0
    assert pulled[3:] == ["tokenizer-qwen3", "tokenizer-llama3_1", "tokenizer-llama2"]


def test_pull_of_ids_takes_these_once_each(pulled: list[str]) -> None:
    assert main(["models", "pull", "whisper-base", "whisper-base"]) == 0
    assert pulled == ["whisper-base"]


def test_only_what_is_missing_is_fetched_for_a_start(
    pulled: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"whisper-tiny.en"}
    monkeypatch.setattr(
        ModelCache, "find", lambda self, entry: Path() if entry.id in here else None
    )
    pull_missing(default_entries())
    assert pulled == ["smollm2-135m-instruct", "smart-turn-v3.2"]
    here |= set(pulled)
    capsys.readouterr()
    pull_missing(default_entries())
    assert capsys.readouterr() == ("", "")


def test_an_unknown_id_stops_before_anything_is_fetched(pulled: list[str]) -> None:
    assert main(["models", "pull", "whisper-base", "whisper-huge"]) == 2
    assert pulled == []


def test_progress_ends_on_the_whole_size(
    pulled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["models", "pull", "smart-turn-v3.2"])
    err = capsys.readouterr().err
    assert "fetching smart-turn-v3.2 (12 MB)" in err
    assert "12.1/12.1 MB" in err


def test_the_list_shows_every_model_and_whether_it_is_here(
    pulled: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ModelCache, "find", lambda self, entry: Path() if entry.id == "whisper-base" else None
    )
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in MODELS:
        line = next(line for line in lines if line.strip().startswith(entry.id))
        assert line.split()[-1] == ("yes" if entry.id == "whisper-base" else "no")
        assert (" * " in line) == entry.is_default
