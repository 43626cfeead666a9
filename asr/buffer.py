"""The samples of a stream that may still be needed, addressed by their position in the stream."""

from __future__ import annotations

import numpy as np

from asr.audio import Samples

INITIAL_SAMPLES = 1 << 16


class AudioBuffer:
    """Samples [start, end) of a stream. Appending copies once; memory follows what is kept.

    Invariant: `_data[_offset : _offset + end - start]` are the samples [start, end).
    """

    def __init__(self) -> None:
        self._data = np.zeros(INITIAL_SAMPLES, dtype=np.float32)
        self._offset = 0
        self.start = 0
        self.end = 0

    def append(self, samples: Samples) -> None:
        needed = self._offset + (self.end - self.start) + len(samples)
        if needed > len(self._data):
            self._make_room(len(samples))
        position = self._offset + self.end - self.start
        self._data[position : position + len(samples)] = samples
        self.end += len(samples)

    def view(self, start: int, end: int) -> Samples:
        """Samples [start, end), valid until the next call of `append` or `drop_before`."""
        assert self.start <= start <= end <= self.end, (self.start, start, end, self.end)
        first = self._offset + start - self.start
        return self._data[first : first + end - start]

    def copy(self, start: int, end: int) -> Samples:
        """Samples [start, end), read-only, for messages that outlive the buffer."""
        samples = self.view(start, end).copy()
        samples.flags.writeable = False
        return samples

    def drop_before(self, position: int) -> None:
        """Forget what lies before `position`; positions already forgotten are fine."""
        num_dropped = min(max(position - self.start, 0), self.end - self.start)
        self._offset += num_dropped
        self.start += num_dropped

    def _make_room(self, num_new: int) -> None:
        kept = self._data[self._offset : self._offset + self.end - self.start]
        capacity = max(INITIAL_SAMPLES, 2 * (len(kept) + num_new))
        data = np.zeros(capacity, dtype=np.float32)
        data[: len(kept)] = kept
        self._data, self._offset = data, 0
