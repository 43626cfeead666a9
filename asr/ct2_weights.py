"""Reads the weights of a CTranslate2 model file (`model.bin`, binary version 6)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from asr.errors import ModelBroken

BINARY_VERSION = 6
ELEMENT_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)

Weights = dict[str, np.ndarray]


def read_weights(path: Path) -> Weights:
    """Every variable by its name, mapped from the file. Raises ModelBroken."""
    try:
        return _Reader(np.memmap(path, dtype=np.uint8, mode="r")).variables()
    except (struct.error, IndexError, ValueError, OSError) as error:
        raise ModelBroken(path, str(error)) from error


def float_matrix(weights: Weights, name: str) -> np.ndarray:
    """The variable `name` as float32; one stored as int8 has a scale per row."""
    values = weights[name].astype(np.float32)
    if weights[name].dtype == np.int8:
        values /= weights[f"{name}_scale"].astype(np.float32)[:, None]
    return values


class _Reader:
    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._position = 0

    def variables(self) -> Weights:
        version = self._number("I")
        if version != BINARY_VERSION:
            raise ValueError(f"binary version {version}, not {BINARY_VERSION}")
        self._text()  # name of the specification
        self._number("I")  # and its revision
        return dict(self._variable() for _ in range(self._number("I")))

    def _variable(self) -> tuple[str, np.ndarray]:
        name = self._text()
        shape = [self._number("I") for _ in range(self._number("B"))]
        element_type = ELEMENT_TYPES[self._number("B")]
        values = self._bytes(self._number("I")).view(element_type)
        return name, values.reshape(shape)

    def _text(self) -> str:
        return bytes(self._bytes(self._number("H"))[:-1]).decode()

    def _number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, bytes(self._bytes(struct.calcsize("<" + code))))
        return int(value)

    def _bytes(self, count: int) -> np.ndarray:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            raise ValueError("the file ends early")
        self._position += count
        return taken
