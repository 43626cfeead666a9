"""A connection's limits, with a socket and a session made of queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from app import messages as m
from app.connection import ByteBudget, CloseCode, Connection, Limits
from app.protocols.realtime import RealtimeAdapter, SessionDefaults
from tests.app.scripted_runtime import ScriptedRuntime

TYPED = json.dumps({"type": "forespeak.text.typed", "text": "Hi", "final": True})


class QueueSocket:
    """What the client sends is put into `incoming` (None: it leaves), what it gets is in `sent`."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[str | None] = asyncio.Queue()
        self.sent: list[dict] = []
        self._more = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (message := await self.incoming.get()) is not None:
            yield message

    async def send(self, message: str) -> None:
        await self.may_send.wait()
        self.sent.append(json.loads(message))
        self._more.set()

    async def until(self, kind: str) -> None:
        while kind not in self.types:
            self._more.clear()
            await self._more.wait()

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.sent]


@pytest.fixture
def line():
    return QueueSocket()


@pytest.fixture
async def session():
    session = ScriptedRuntime().open_session()
    yield session
    await session.close()


def connection_of(line, session, limits=None) -> Connection:
    adapter = RealtimeAdapter(session.name, SessionDefaults())
    return Connection(line, session, adapter, limits or Limits())


async def finish(connection: Connection):
    return await asyncio.wait_for(connection.run(), 10)


async def test_a_client_that_leaves_ends_the_connection(line, session):
    line.incoming.put_nowait(TYPED)
    line.incoming.put_nowait(None)
    closing = await finish(connection_of(line, session))
    assert closing.code == CloseCode.NORMAL
    assert session.commands == [m.TextTyped("Hi", True)]


async def test_the_client_is_greeted_and_answered_in_order(line, session):
    connection = connection_of(line, session)
    line.incoming.put_nowait(TYPED)
    running = asyncio.create_task(finish(connection))
    async with asyncio.timeout(10):
        await line.until("response.done")
    assert line.types[0] == "session.created"
    line.incoming.put_nowait(None)
    assert (await running).code == CloseCode.NORMAL


async def test_a_session_that_ends_closes_the_connection(line, session):
    running = asyncio.create_task(finish(connection_of(line, session)))
    await asyncio.sleep(0)
    await session.close()
    assert (await running).code == CloseCode.GOING_AWAY


async def test_a_fatal_error_is_sent_before_the_end(line, session):
    session.emit(m.ErrorReported("internal_error", "it failed", fatal=True))
    closing = await finish(connection_of(line, session))
    assert (closing.code, closing.reason) == (CloseCode.INTERNAL_ERROR, "internal_error")
    assert line.types == ["session.created", "error"]


async def test_a_client_that_reads_nothing_fills_its_outbox_and_is_let_go(line, session):
    line.may_send.clear()
    for _ in range(8):
        await session.send(m.TextTyped("Hi", True))  # each is answered with 64 kB of audio
    closing = await finish(connection_of(line, session, Limits(max_outbox_bytes=300_000)))
    assert closing.code == CloseCode.TOO_SLOW and "300000" in closing.reason


async def test_a_client_that_stops_reading_is_let_go_after_the_time_limit(line, session):
    line.may_send.clear()
    closing = await finish(connection_of(line, session, Limits(send_timeout_s=0.01)))
    assert closing.code == CloseCode.TOO_SLOW


async def test_errors_in_a_row_end_the_connection_but_single_ones_do_not(line, session):
    limits = Limits(max_errors_in_a_row=2)
    for message in ["{", "{", TYPED, "{", "{", "{"]:
        line.incoming.put_nowait(message)
    closing = await finish(connection_of(line, session, limits))
    assert closing.code == CloseCode.TOO_MANY_ERRORS
    assert line.types.count("error") == 5


async def test_leaving_waits_for_the_running_reply_unless_told_otherwise(line, session):
    session.may_finish.clear()
    connection = connection_of(line, session)
    line.incoming.put_nowait(TYPED)
    running = asyncio.create_task(finish(connection))
    async with asyncio.timeout(10):
        await line.until("response.created")
    connection.leave()
    await asyncio.sleep(0.01)
    assert not running.done()
    connection.leave(at_once=True)
    assert (await running).code == CloseCode.GOING_AWAY


async def test_bytes_beyond_the_burst_wait_until_they_are_affordable():
    now_s, slept = [0.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    budget = ByteBudget(100.0, 50.0, clock=lambda: now_s[0], sleep=sleep)
    await budget.spend(50)
    assert slept == []
    await budget.spend(20)
    assert slept == [pytest.approx(0.2)]
    now_s[0] += 10  # what is saved up is bounded
    await budget.spend(50)
    assert len(slept) == 1
    await budget.spend(1)
    assert slept[1] == pytest.approx(0.01)
