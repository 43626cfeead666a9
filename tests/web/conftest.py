"""A headless Chromium whose microphone is a file."""

from __future__ import annotations

import shutil
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page, async_playwright

from asr.audio import Resampler, float_to_pcm16, read_file

CLIP = Path(__file__).parent.parent / "clips" / "brooklyn_bridge.wav"
MICROPHONE_RATE_HZ = 48_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Taps what goes to the loudspeaker (`heardLevel()`: the loudest sample of the last 85 ms), and
# counts what goes up.
TAP = """
const connect = AudioNode.prototype.connect;
const taps = [];
AudioNode.prototype.connect = function (target, ...rest) {
  if (target === this.context.destination) {
    const tap = this.context.createAnalyser();
    connect.call(this, tap);
    taps.push(tap);
  }
  return connect.call(this, target, ...rest);
};
const send = WebSocket.prototype.send;
window.sentFrames = [];  // bytes of audio in each message
WebSocket.prototype.send = function (text) {
  const { type, audio } = JSON.parse(text);
  if (type === "input_audio_buffer.append") window.sentFrames.push(atob(audio).length);
  return send.call(this, text);
};
window.heardLevel = () => Math.max(0, ...taps.map((tap) => {
  const samples = new Float32Array(tap.fftSize);
  tap.getFloatTimeDomainData(samples);
  return Math.max(...samples.map(Math.abs));
}));
window.loudest = 0;  // since the start: a short reply may be over before it is asked for
setInterval(() => { window.loudest = Math.max(loudest, heardLevel()); }, 40);
"""
OpenPage = Callable[..., AbstractAsyncContextManager[Page]]


@pytest.fixture(scope="session")
def microphone_file(tmp_path_factory) -> Path:
    """The clip after half a second of silence, as Chromium's fake microphone wants it."""
    samples = np.concatenate([np.zeros(8_000, np.float32), read_file(CLIP)])
    resampler = Resampler(16_000, MICROPHONE_RATE_HZ)
    audio = np.concatenate([resampler.push(samples), resampler.finish()])
    path = tmp_path_factory.mktemp("microphone") / "caller.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(MICROPHONE_RATE_HZ)
        file.writeframes(float_to_pcm16(audio))
    return path


@pytest.fixture
def open_page(microphone_file) -> OpenPage:
    """`async with open_page(url) as page`: fails at the end if the page had an error of its own."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed")

    @asynccontextmanager
    async def open_page(url: str, *, may_listen: bool = True) -> AsyncIterator[Page]:
        flags = [*FLAGS, f"--use-file-for-fake-audio-capture={microphone_file}%noloop"]
        if may_listen:
            flags.append("--use-fake-ui-for-media-stream")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=flags)
            page = await browser.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on(
                "console",
                lambda message: (
                    problems.append(message.text)
                    if message.type == "error" and "WebSocket" not in message.text
                    else None
                ),
            )
            await page.add_init_script(TAP)
            await page.goto(url)
            try:
                yield page
            finally:
                await browser.close()
            assert not problems

    return open_page
