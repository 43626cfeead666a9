"""A table derived from a model, kept on disk from start to start."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VERSION = 1  # of how the table is made: raise it when that changes


@dataclass(frozen=True, slots=True)
class KeptTable:
    """One array in one file; `path` None keeps nothing. A file that cannot be used is made anew."""

    path: Path | None

    @classmethod
    def of(cls, model: Path, computed_by: str, folder: Path | None) -> KeptTable:
        """Named after the model's file, its size and age, and what computes the table, and how."""
        if folder is None:
            return cls(None)
        try:
            state = (model / "model.bin").stat()
        except OSError:
            return cls(None)
        about = f"{VERSION} {model.resolve()} {state.st_size} {state.st_mtime_ns} {computed_by}"
        return cls(folder / f"graft-{hashlib.sha256(about.encode()).hexdigest()[:16]}.npy")

    def load(self) -> np.ndarray | None:
        if self.path is None:
            return None
        try:
            table: np.ndarray = np.load(self.path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return table if table.dtype == np.float32 and table.ndim == 3 else None

    def save(self, table: np.ndarray | None) -> None:
        """Whole or not at all; a folder that cannot be written to costs the next start its time."""
        if self.path is None or table is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                np.save(file, table)
            os.replace(file.name, self.path)
        except OSError:
            return
