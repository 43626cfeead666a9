from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.__main__ import main
from app.runtime import Runtime

pytestmark = pytest.mark.models


def test_lines_summary_and_the_call_as_heard(
    bundled_clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = bundled_clips / "gasst_whattimeisit.riff"
    arguments = ["replay", str(clip), "--clock", "virtual", "--compute", "free"]
    outputs = ["--json", str(tmp_path / "turns.jsonl"), "--wav", str(tmp_path / "call.wav")]
    assert main([*arguments, *outputs, "--report", str(tmp_path / "report")]) == 0
    lines = capsys.readouterr().out.splitlines()
    turn, summary = json.loads(lines[0]), json.loads(lines[-1])["summary"]
    assert turn["clip"] == clip.name and turn["mode"] == "on" and turn["reply"]
    assert summary["turns"] == 1 and summary["wer"]["p50"] == 0.0
    assert (tmp_path / "turns.jsonl").read_text().splitlines() == lines
    assert (tmp_path / "call.wav").stat().st_size > 10_000
    assert (tmp_path / "report" / "delays.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "nosuch"], "none of 6 recordings"),
        (["--json", "/no/such/folder/x.json"], "its folder does not exist"),
        (["--temperature", "9"], "temperature=9.0"),
    ],
)
def test_wrong_arguments_are_told_in_one_line_before_anything_is_loaded(
    bundled_clips: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(["replay", str(bundled_clips), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_what_is_no_audio_is_reported_before_the_models_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(Runtime, "load", load)
    (tmp_path / "a.wav").write_text("this is not audio")
    (tmp_path / "b.wav").touch()
    arguments = ["replay", str(tmp_path), "--clock", "virtual", "--compute", "free"]
    assert main(arguments) == 1  # nothing could be replayed
    errors = capsys.readouterr().err
    assert "a.wav" in errors and "b.wav" in errors and "Traceback" not in errors


@pytest.mark.models
def test_the_recordings_beside_one_that_is_no_audio_are_replayed(
    tmp_path: Path, bundled_clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.wav").write_text("this is not audio")
    (tmp_path / "b.riff").write_bytes((bundled_clips / "gasst_whattimeisit.riff").read_bytes())
    assert main(["replay", str(tmp_path), "--clock", "virtual", "--compute", "free"]) == 0
    said = capsys.readouterr()
    assert "a.wav" in said.err and '"clip": "b.riff"' in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.wav"], "missing.wav"),
        (["CLIP", "--clock", "virtual", "--compute", "nowhere.json"], "nowhere.json"),
        (["CLIP", "--llm", "./no-such/file.gguf"], "no-such/file.gguf"),
        (["CLIP", "--prompt", "nothing.toml"], "nothing.toml"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    bundled_clips: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = str(bundled_clips / "gasst_whattimeisit.riff")
    assert main(["replay", *(clip if word == "CLIP" else word for word in arguments)]) == 2
    errors = capsys.readouterr().err.strip()
    assert said in errors and len(errors.splitlines()) == 1
