from __future__ import annotations

import asyncio

import pytest

from app.outbox import Outbox, OutboxFull


async def test_messages_leave_in_order_and_count_until_they_are_sent():
    outbox = Outbox(10)
    outbox.put("abc")
    outbox.put("de")
    assert outbox.num_bytes == 5
    assert [await outbox.take(), await outbox.take()] == ["abc", "de"]
    assert outbox.num_bytes == 5
    outbox.sent("abc")
    outbox.sent("de")
    assert outbox.num_bytes == 0
    await asyncio.wait_for(outbox.wait_empty(), 1)


async def test_more_than_the_limit_is_refused_and_not_kept():
    outbox = Outbox(4)
    outbox.put("abc")
    with pytest.raises(OutboxFull, match="4 bytes"):
        outbox.put("de")
    assert outbox.num_bytes == 3
    outbox.put("d")


async def test_taking_waits_for_a_message_and_may_be_cancelled():
    outbox = Outbox(4)
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put("a")
    assert await waiting == "a"
