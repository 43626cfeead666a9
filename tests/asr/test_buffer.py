from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.buffer import INITIAL_SAMPLES, AudioBuffer


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 50_000)), max_size=20))
def test_what_is_kept_is_what_was_appended(steps: list[tuple[int, int]]) -> None:
    buffer = AudioBuffer()
    stream = np.arange(sum(size for size, _ in steps), dtype=np.float32)
    end = 0
    for size, num_dropped in steps:
        buffer.append(stream[end : end + size])
        end += size
        buffer.drop_before(buffer.start + num_dropped)
        assert buffer.end == end
        assert np.array_equal(buffer.view(buffer.start, end), stream[buffer.start : end])


def test_memory_does_not_grow_with_the_stream() -> None:
    buffer = AudioBuffer()
    for _ in range(1_000):
        buffer.append(np.zeros(16_000, np.float32))
        buffer.drop_before(buffer.end - 16_000)
    assert len(buffer._data) <= INITIAL_SAMPLES


def test_copies_outlive_the_buffer_and_cannot_be_written() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(100, np.float32))
    copy = buffer.copy(10, 20)
    buffer.drop_before(100)
    buffer.append(np.zeros(INITIAL_SAMPLES, np.float32))
    assert copy.sum() == 10
    with pytest.raises(ValueError, match="read-only"):
        copy[0] = 0.0


def test_dropping_the_past_again_changes_nothing() -> None:
    buffer = AudioBuffer()
    buffer.append(np.zeros(100, np.float32))
    buffer.drop_before(50)
    buffer.drop_before(20)
    assert (buffer.start, buffer.end) == (50, 100)
