from __future__ import annotations

from pathlib import Path

import pytest

from app.config import AppConfig
from app.runtime import Runtime
from app.virtual import VirtualClock


@pytest.fixture
def index_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages in this test and its child processes."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


@pytest.fixture(scope="session")
def bundled_clips() -> Path:
    """Recordings that belong to the project, with their manifest."""
    return Path(__file__).parent.parent / "clips"


@pytest.fixture(scope="session")
def virtual_runtime(
    smollm2_path: Path, whisper_path: Path, smart_turn_path: Path
) -> tuple[Runtime, VirtualClock]:
    """The default models behind an engine that runs on a virtual clock."""
    clock = VirtualClock()
    return Runtime.load(AppConfig(max_reply_tokens=24), clock), clock
