"""Checks of single fields of client events; each raises ProtocolError naming `param`."""

from __future__ import annotations

from typing import Any, TypeVar

from app.protocols.errors import ProtocolError

_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
MAX_TOKENS = 4096  # what "inf" means here
_T = TypeVar("_T")


def max_tokens(value: object, param: str) -> int:
    return MAX_TOKENS if value == "inf" else whole_number(value, 1, MAX_TOKENS, param)


def modalities(value: object, param: str) -> bool:
    """Is the reply spoken? GA knows ["audio"] and ["text"], the beta ["text", "audio"]."""
    names = checked(value, list, param)
    if not names or any(name not in ("audio", "text") for name in names):
        raise ProtocolError("invalid_value", f"modalities must be audio or text: {value!r}", param)
    return "audio" in names


def object_at(value: object, param: str) -> dict[str, Any]:
    return checked(value, dict, param)


def checked(value: object, wanted: type[_T], param: str) -> _T:
    if not isinstance(value, wanted):
        raise ProtocolError(
            "invalid_type", f"{param} must be {_NAMES[wanted]}, not {value!r:.40}", param
        )
    return value


def whole_number(value: object, low: int, high: int, param: str) -> int:
    given = number(value, low, high, param)
    if given != int(given):
        raise ProtocolError("invalid_value", f"{param} must be a whole number, not {given}", param)
    return int(given)


def number(value: object, low: float, high: float, param: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolError("invalid_type", f"{param} must be a number, not {value!r:.40}", param)
    if not low <= value <= high:
        raise ProtocolError(
            "invalid_value", f"{param} must be within {low} and {high}, not {value}", param
        )
    return value
