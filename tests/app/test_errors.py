from __future__ import annotations

import inspect
from pathlib import Path

from app import errors


def test_the_tree_at_the_top_names_every_error() -> None:
    tree = errors.__doc__ or ""
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "app.errors"
    ]
    missing = [c.__name__ for c in classes if c.__name__ not in tree]
    assert not missing
    assert all(issubclass(c, errors.ForespeakError) for c in classes)


def test_messages_name_the_offending_value() -> None:
    assert "8 MB needed, 1 MB free" in str(errors.DiskFull(Path("/models"), 8_000_000, 1_000_000))
    assert "'nope'" in str(errors.UnknownModel("nope", "llm", ["a", "b"]))
    assert "/no/where" in str(errors.ModelNotFound("/no/where", "no such file"))
    assert "abc, expected def" in str(errors.HashMismatch("model.bin", "def", "abc"))
