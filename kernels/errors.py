"""Errors of the kernel layer."""

from __future__ import annotations


class KernelArgumentError(ValueError):
    """A wrapper was called with a shape, dtype or device that its op does not take."""


class PassAbandoned(Exception):
    """A pass was given up half-way, as asked: its rows hold nothing of use."""


def require(condition: bool, message: str) -> None:
    """Raise `KernelArgumentError(message)` unless `condition` holds."""
    if not condition:
        raise KernelArgumentError(message)
