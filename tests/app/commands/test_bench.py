from __future__ import annotations

import argparse
import json

import pytest

from app.commands import bench


def test_the_figures_are_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.bench.modes.run_command", lambda arguments: {"rows": [1]})
    assert bench.run(argparse.Namespace(part="modes")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"rows": [1]}


def test_every_part_can_be_asked_for_help(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in bench.PARTS:
        monkeypatch.setattr("sys.argv", ["app", "bench", part])
        parser = argparse.ArgumentParser()
        bench.add_parser(parser.add_subparsers())
        with pytest.raises(SystemExit) as done:
            parser.parse_args(["bench", part, "--help"])
        assert done.value.code == 0
