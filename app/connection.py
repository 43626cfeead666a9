"""One client's connection: socket → adapter → session, and back, each direction a task.

    read    socket ─messages─► adapter.receive ─commands─► session
    listen  session ─events─► adapter.send ─messages─► outbox
    write   outbox ─► socket

It knows no socket library: `Socket` is what it needs of one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from app import messages as m
from app.outbox import Outbox, OutboxFull


class CloseCode(IntEnum):
    """How connections end (RFC 6455 §7.4.1; 4000–4999 are ours)."""

    NORMAL = 1000
    GOING_AWAY = 1001  # the server is shutting down
    INTERNAL_ERROR = 1011  # the session failed
    TRY_AGAIN_LATER = 1013  # no session now: as many as configured are open
    TOO_SLOW = 4008  # the client does not read what it is sent
    TOO_MANY_ERRORS = 4029  # nothing but wrong messages


@dataclass(frozen=True, slots=True)
class Closing:
    code: CloseCode
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection."""

    max_message_bytes: int = 16 * 1024 * 1024
    max_outbox_bytes: int = 16 * 1024 * 1024
    max_bytes_per_s: float = 4e6  # read no faster: 60 times a call's 64 kB/s
    burst_bytes: float = 64e6
    message_cost_bytes: int = 512  # what a message costs beyond its size
    max_errors_in_a_row: int = 100
    send_timeout_s: float = 30.0
    flush_timeout_s: float = 2.0


class Socket(Protocol):
    """Iterating gives messages until the client closes; all three raise when the line breaks."""

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...
    async def send(self, message: str) -> None: ...


class LiveSession(Protocol):
    """What app/live.py offers."""

    async def send(self, command: m.ClientCommand) -> None: ...
    def events(self) -> AsyncIterator[m.ServerEvent]: ...
    async def close(self) -> None: ...


class Adapter(Protocol):
    """What every wire format in app/protocols/ offers. Steps are commands, or dicts to send."""

    @property
    def is_replying(self) -> bool: ...
    def open(self) -> list[m.ClientCommand | dict[str, Any]]: ...
    def receive(self, message: str | bytes) -> list[m.ClientCommand | dict[str, Any]]: ...
    def send(self, event: m.ServerEvent) -> list[m.ClientCommand | dict[str, Any]]: ...


class Connection:
    """Runs until the client leaves, a limit is passed, the session fails, or `leave` is called."""

    def __init__(
        self, socket: Socket, session: LiveSession, adapter: Adapter, limits: Limits
    ) -> None:
        self._socket = socket
        self._session = session
        self._adapter = adapter
        self._limits = limits
        self._outbox = Outbox(limits.max_outbox_bytes)
        self._budget = ByteBudget(limits.max_bytes_per_s, limits.burst_bytes)
        self._leaving = asyncio.Event()
        self._progress = asyncio.Event()  # something was sent, or a reply may be over
        self._leaves_at_once = False

    def leave(self, *, at_once: bool = False) -> None:
        """End the connection: after the running reply, or at once."""
        self._leaves_at_once = at_once
        self._leaving.set()
        self._progress.set()

    async def run(self) -> Closing:
        """Serve the client. Raises what the socket raises when the line breaks."""
        await self._carry_out(self._adapter.open())
        jobs: list[Coroutine[Any, Any, Closing]] = [
            self._read(),
            self._listen(),
            self._write(),
            self._leave_when_idle(),
        ]
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next(task for task in tasks if task in finished).result()

    async def _read(self) -> Closing:
        num_errors = 0
        async for message in self._socket:
            await self._budget.spend(len(message) + self._limits.message_cost_bytes)
            steps = self._adapter.receive(message)
            is_error = any(isinstance(step, dict) and step["type"] == "error" for step in steps)
            num_errors = num_errors + 1 if is_error else 0
            try:
                await self._carry_out(steps)
            except OutboxFull as full:
                return Closing(CloseCode.TOO_SLOW, str(full))
            if num_errors > self._limits.max_errors_in_a_row:
                await self._flush()
                return Closing(CloseCode.TOO_MANY_ERRORS, f"{num_errors} wrong messages in a row")
        return Closing(CloseCode.NORMAL)

    async def _listen(self) -> Closing:
        async for event in self._session.events():
            try:
                await self._carry_out(self._adapter.send(event))
            except OutboxFull as full:
                return Closing(CloseCode.TOO_SLOW, str(full))
            self._progress.set()
            if isinstance(event, m.ErrorReported) and event.fatal:
                await self._flush()
                return Closing(CloseCode.INTERNAL_ERROR, event.code)
        return Closing(CloseCode.GOING_AWAY, "the session ended")

    async def _write(self) -> Closing:
        while True:
            message = await self._outbox.take()
            try:
                async with asyncio.timeout(self._limits.send_timeout_s):
                    await self._socket.send(message)
            except TimeoutError:
                seconds = self._limits.send_timeout_s
                return Closing(CloseCode.TOO_SLOW, f"nothing was read for {seconds:.0f} s")
            self._outbox.sent(message)
            self._progress.set()

    async def _leave_when_idle(self) -> Closing:
        await self._leaving.wait()
        while not self._leaves_at_once and (self._adapter.is_replying or self._outbox.num_bytes):
            self._progress.clear()
            await self._progress.wait()
        return Closing(CloseCode.GOING_AWAY, "the server is shutting down")

    async def _carry_out(self, steps: list[m.ClientCommand | dict[str, Any]]) -> None:
        for step in steps:
            if isinstance(step, dict):
                self._outbox.put(json.dumps(step, ensure_ascii=False, separators=(",", ":")))
            else:
                await self._session.send(step)

    async def _flush(self) -> None:
        """Give the client a last chance to read why it is let go."""
        try:
            async with asyncio.timeout(self._limits.flush_timeout_s):
                await self._outbox.wait_empty()
        except TimeoutError:
            pass


class ByteBudget:
    """A token bucket: `spend` waits until the bytes are affordable, so that reading pauses."""

    def __init__(
        self,
        bytes_per_s: float,
        burst_bytes: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._left_bytes = burst_bytes
        self._clock = clock
        self._sleep = sleep
        self._at_s = clock()

    async def spend(self, num_bytes: int) -> None:
        now_s = self._clock()
        earned = (now_s - self._at_s) * self._bytes_per_s
        self._left_bytes = min(self._burst_bytes, self._left_bytes + earned) - num_bytes
        self._at_s = now_s
        if self._left_bytes < 0:
            await self._sleep(-self._left_bytes / self._bytes_per_s)
