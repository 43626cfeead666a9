"""A network written down node by node, as the bytes of an ONNX model.

Only what `asr/decoder.py` needs of the format (onnx.proto3): the wire form of its messages is small
enough not to depend on a package for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

IR_VERSION = 10
OPSET_VERSION = 20
CONTRIB_DOMAIN = "com.microsoft"
ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_FLOAT, _INT, _INTS = 1, 2, 7  # AttributeProto.AttributeType

Attribute = int | float | Sequence[int]


class Graph:
    """Nodes are added in order; every `add` returns the name of the node's output."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []
        self._num_names = 0

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        """A float32 input; a string in `shape` names a length that varies."""
        self._inputs.append(_value_info(name, shape))
        return name

    def constant(self, values: np.ndarray | np.generic) -> str:
        name = self._new_name("c")
        dims = b"".join(_number(1, size) for size in values.shape)
        self._constants.append(
            dims
            + _number(2, ELEMENT_TYPES[values.dtype.name])
            + _text(8, name)
            + _field(9, np.ascontiguousarray(values).tobytes())
        )
        return name

    def add(
        self, op: str, *inputs: str, domain: str = "", output: str = "", **attributes: Attribute
    ) -> str:
        return self.add_split(op, inputs, [output or self._new_name("v")], domain, **attributes)[0]

    def add_split(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str = "",
        **attributes: Attribute,
    ) -> Sequence[str]:
        """A node with several outputs."""
        self._nodes.append(
            b"".join(_text(1, name) for name in inputs)
            + b"".join(_text(2, name) for name in outputs)
            + _text(4, op)
            + b"".join(_field(5, _attribute(*item)) for item in attributes.items())
            + _text(7, domain)
        )
        return outputs

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        self._outputs.append(_value_info(name, shape))

    def to_bytes(self) -> bytes:
        graph = b"".join(
            _field(number, message)
            for number, messages in (
                (1, self._nodes),
                (5, self._constants),
                (11, self._inputs),
                (12, self._outputs),
            )
            for message in messages
        )
        opsets = [("", OPSET_VERSION), (CONTRIB_DOMAIN, 1)]
        return (
            _number(1, IR_VERSION)
            + _field(7, graph + _text(2, "decoder"))
            + b"".join(_field(8, _text(1, name) + _number(2, v)) for name, v in opsets)
        )

    def _new_name(self, prefix: str) -> str:
        self._num_names += 1
        return f"{prefix}{self._num_names}"


def _varint(value: int) -> bytes:
    encoded = bytearray()
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        content = _varint(2 << 3 | _FIXED32) + struct.pack("<f", value) + _number(20, _FLOAT)
    elif isinstance(value, int):
        content = _number(3, value) + _number(20, _INT)
    else:
        content = b"".join(_number(8, item) for item in value) + _number(20, _INTS)
    return _text(1, name) + content


def _value_info(name: str, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(
        _field(1, _number(1, size) if isinstance(size, int) else _text(2, size)) for size in shape
    )
    tensor = _number(1, ELEMENT_TYPES["float32"]) + _field(2, dims)
    return _text(1, name) + _field(2, _field(1, tensor))
