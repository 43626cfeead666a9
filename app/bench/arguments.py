"""Types of arguments that several benches take."""

from __future__ import annotations

from argparse import ArgumentTypeError


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
