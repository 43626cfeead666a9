"""What waits to be sent to one client: bounded, so that one that does not read costs little."""

from __future__ import annotations

import asyncio
from collections import deque


class OutboxFull(Exception):
    """The client does not read: more than `max_bytes` wait for it."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes} bytes wait to be read")


class Outbox:
    """Messages in order. `put` never waits; overflow policy: OutboxFull, the connection ends.

    A message counts until `sent` is called for it. One task takes, any may put.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[str] = deque()
        self._num_bytes = 0
        self._has_some = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, message: str) -> None:
        """Raises OutboxFull; the message is not kept then."""
        if self._num_bytes + len(message) > self._max_bytes:
            raise OutboxFull(self._max_bytes)
        self._messages.append(message)
        self._num_bytes += len(message)
        self._has_some.set()
        self._is_empty.clear()

    async def take(self) -> str:
        """The oldest message; waits for one. Safe to cancel: nothing is lost while waiting."""
        await self._has_some.wait()
        message = self._messages.popleft()
        if not self._messages:
            self._has_some.clear()
        return message

    def sent(self, message: str) -> None:
        """`message`, taken before, is with the client."""
        self._num_bytes -= len(message)
        if not self._num_bytes:
            self._is_empty.set()

    async def wait_empty(self) -> None:
        """Until everything was sent."""
        await self._is_empty.wait()
