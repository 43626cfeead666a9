from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.gguf_metadata import BadGGUF, read_head, read_metadata


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_float32("a.ratio", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.name", "Ωmega")
    writer.add_array("a.words", ["x", "", "ß"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_kind_of_value_is_read(small: Path) -> None:
    assert read_metadata(small) == {
        "general.architecture": "llama",
        "a.count": 7,
        "a.ratio": 0.5,
        "a.flag": True,
        "a.name": "Ωmega",
        "a.words": ["x", "", "ß"],
        "a.numbers": [1, -2, 3],
    }


def test_the_tensor_table_begins_behind_the_keys(small: Path) -> None:
    head = read_head(small)
    assert (head.num_tensors, head.num_bytes) == (0, small.stat().st_size)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"GGML" + bytes(40), "begins with"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "truncated"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(BadGGUF, match=problem):
        read_metadata(path)


@settings(max_examples=200)
@given(data=st.data())
def test_a_corrupt_head_never_ends_otherwise_than_typed(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    path = small.with_name("corrupt.gguf")
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        read_metadata(path)
    except BadGGUF as error:
        assert error.path == path
