from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.__main__ import COMMANDS, main

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_typed_error_is_one_line_and_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "nonsense"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("UnknownModel: unknown model 'nonsense'")
    assert printed.err.count("\n") == 1


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dance"])
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert "dance" in printed
    assert all(name in printed for name in COMMANDS)


def test_listing_models_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from app.__main__ import main\n"
        "assert main(['models', 'list']) == 0\n"
        "heavy = {'torch', 'transformers', 'ctranslate2', 'onnxruntime', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "smollm2-135m-instruct" in done.stdout
