"""Reply tokens → text as it grows: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from llm_engine.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of tokens pushed one after another.

    What has been returned so far is always what `Tokenizer.decode` gives for the same ids, without
    a character whose last bytes are still to come.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_blank = not tokenizer.is_byte_level  # decode() drops the first blank of a text

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; possibly empty."""
        return self._emit(b"".join(map(self._tokenizer.token_bytes, token_ids)), final=False)

    def finish(self) -> str:
        """U+FFFD for a character that was never completed, else nothing."""
        return self._emit(b"", final=True)

    def _emit(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if text and self._drops_blank:
            self._drops_blank = False
            return text.removeprefix(" ")
        return text


class StopMatcher:
    """Lets text through up to the first stop string that is completed.

    Text that may be the beginning of a stop string is held back until that is decided, so that the
    result does not depend on how the text was cut. Of stop strings that end at the same character
    the longest counts. Raises ValueError for an empty stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise ValueError(f"an empty stop string would stop every reply: {tuple(stop)!r}")
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """The text that may now be shown; nothing once stopped."""
        if self.is_stopped:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        matches = [
            (start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0
        ]
        if matches:
            self.is_stopped = True
            self._held = ""
            return text[: min(matches)[1]]
        keep = max(_longest_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when the reply ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _longest_overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
