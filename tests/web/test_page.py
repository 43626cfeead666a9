"""The page in Chromium, against the real server with a scripted runtime, and with real models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from app import messages as m
from app.config import AppConfig
from app.live import LiveRuntime
from app.protocols.realtime import SessionDefaults
from app.runtime import Runtime
from app.server import Server
from tests.app.scripted_runtime import ScriptedRuntime

TIMEOUT_S = 30.0
MODELS_TIMEOUT_S = 120.0  # a browser and three models may share two busy cores
expect.set_options(timeout=TIMEOUT_S * 1000)


@pytest.fixture
def runtime() -> ScriptedRuntime:
    return ScriptedRuntime()


@pytest.fixture
async def server(runtime) -> AsyncIterator[Server]:
    server = Server(runtime, AppConfig(port=0), SessionDefaults())
    await server.start()
    yield server
    await server.drain(0.2)


async def hear_something(page: Page, timeout_s: float = TIMEOUT_S) -> None:
    await until(page, "loudest > 0.05", timeout_s)


async def until(page: Page, condition: str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a JavaScript condition. (Playwright's own waiting is stopped by our CSP.)"""
    async with asyncio.timeout(timeout_s):
        while True:
            if await page.evaluate(condition):
                return
            await asyncio.sleep(0.02)


async def command_of(runtime: ScriptedRuntime, kind: type) -> m.ClientCommand:
    """The first command of that kind of the newest session; waits for it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            for command in runtime.sessions[-1].commands:
                if isinstance(command, kind):
                    return command
            await asyncio.sleep(0.01)


async def test_spoken_words_appear_and_are_answered_aloud(server, open_page, runtime):
    async with open_page(server.url) as page:
        await expect(page.locator("#status")).to_have_text("Ready")
        await page.click("#microphone")
        first = page.locator(".turn").first
        await expect(first.locator(".stable")).to_have_text("What is two plus two?")
        await expect(first.locator(".reply .words")).to_have_text("Reply 1.")
        await expect(first.locator(".draft")).to_be_hidden()
        await hear_something(page)
        await expect(first.locator(".timeline figcaption")).to_contain_text("heard after 201 ms")
        await expect(first.locator(".timeline svg text")).to_have_count(4)
        assert set(await page.evaluate("sentFrames")) == {960}  # 20 ms at 24 kHz
        await page.click("#microphone")
        await expect(page.locator("#microphone")).to_have_attribute("aria-pressed", "false")


async def test_typing_drafts_a_reply_and_enter_commits_it(server, open_page, runtime):
    async with open_page(server.url) as page:
        await expect(page.locator("#send")).to_be_enabled()
        await page.fill("#text", "Hello <b>there</b>")
        turn = page.locator(".turn")
        await expect(turn.locator(".tentative")).to_have_text("Hello <b>there</b>")
        await expect(turn.locator(".draft .words")).to_have_text("Draft for Hello <b>there</b>")
        await page.press("#text", "Enter")
        await expect(turn.locator(".stable")).to_have_text("Hello <b>there</b>")
        await expect(turn.locator(".reply .words")).to_have_text("Reply 1.")
        await expect(page.locator("#text")).to_have_value("")
        await hear_something(page)
        report = await command_of(runtime, m.PlaybackReported)
        assert report.reply_id.startswith("resp_") and report.heard_ms < 1100
        await expect(turn).to_have_count(1)


async def test_cutting_in_silences_the_reply_and_reports_what_was_heard(server, open_page, runtime):
    async with open_page(server.url) as page:
        await expect(page.locator("#send")).to_be_enabled()
        runtime.sessions[0].may_finish.clear()
        await page.fill("#text", "Hello")
        await page.press("#text", "Enter")
        await hear_something(page)
        session = runtime.sessions[0]
        reply = {"reply_id": "resp_item_1_2", "item_id": "item_1_2"}
        session.emit(
            m.ReplyFinished(**reply, reason="interrupted", text="Reply"),
            m.AudioFlushed(**reply),
            m.ReplyCut("item_1_2", 300, "Re"),
        )
        cut = await command_of(runtime, m.ReplyTruncated)
        assert cut.item_id == "item_1_2" and 0 < cut.heard_ms < 1000
        await until(page, "heardLevel() === 0")
        await expect(page.locator(".reply .mark")).to_contain_text("interrupted")


async def test_a_blocked_microphone_is_explained(server, open_page):
    async with open_page(server.url, may_listen=False) as page:
        await expect(page.locator("#microphone")).to_be_enabled()
        await page.click("#microphone")
        await expect(page.locator("#notice")).to_contain_text("microphone is blocked")
        await expect(page.locator("#microphone")).to_have_attribute("aria-pressed", "false")


async def test_a_lost_connection_is_announced_and_restored(server, open_page, runtime):
    async with open_page(server.url) as page:
        await expect(page.locator("#status")).to_have_text("Ready")
        runtime.sessions[0].emit(m.ErrorReported("internal_error", "it failed", fatal=True))
        await expect(page.locator("#notice")).to_contain_text("Trying again")
        await expect(page.locator("#status")).to_have_text("Ready")
        await expect(page.locator("#notice")).to_be_hidden()
        assert runtime.num_opened == 2


@pytest.mark.models
async def test_a_question_is_heard_drafted_and_answered_by_the_real_models(open_page):
    live = LiveRuntime(await asyncio.to_thread(Runtime.load, AppConfig(port=0)))
    server = Server(live, live.runtime.config, SessionDefaults())
    await live.start()
    await server.start()
    try:
        async with open_page(server.url) as page:
            await expect(page.locator("#status")).to_have_text("Ready")
            await page.click("#microphone")
            turn = page.locator(".turn").first
            for part, text in (
                (".stable", "Brooklyn Bridge"),
                (".reply .words", " "),
                (".timeline figcaption", "heard after"),
            ):
                await expect(turn.locator(part)).to_contain_text(
                    text, ignore_case=True, timeout=MODELS_TIMEOUT_S * 1000
                )
            await hear_something(page, MODELS_TIMEOUT_S)
    finally:
        await server.drain(0.2)
        await live.stop()
