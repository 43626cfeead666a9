"""The page's own resampler, run where it is used: in the browser."""

from __future__ import annotations

import math

from app.config import AppConfig
from app.protocols.realtime import SessionDefaults
from app.server import Server
from tests.app.scripted_runtime import ScriptedRuntime

LEVEL = """
async ({ fromHz, toneHz }) => {
  const { Resampler } = await import("/resampler.js");
  const resampler = new Resampler(fromHz, 24000);
  const heard = [];
  for (let i = 0; i < fromHz; i++) {
    resampler.push(Math.sin((2 * Math.PI * toneHz * i) / fromHz), (sample) => heard.push(sample));
  }
  const steady = heard.slice(1000);
  const power = steady.reduce((sum, sample) => sum + sample * sample, 0) / steady.length;
  return [heard.length, Math.sqrt(2 * power)];
}
"""


async def test_speech_passes_and_nothing_is_folded_back(open_page):
    server = Server(ScriptedRuntime(), AppConfig(port=0), SessionDefaults())
    await server.start()
    results = {}
    try:
        async with open_page(server.url) as page:
            for from_hz in (16_000, 24_000, 44_100, 48_000, 96_000):
                for tone_hz in (300, 3_400, 7_000, 14_000, 20_000):
                    if tone_hz < 0.4 * from_hz:  # below the filter's own edge
                        given = {"fromHz": from_hz, "toneHz": tone_hz}
                        results[from_hz, tone_hz] = await page.evaluate(LEVEL, given)
    finally:
        await server.drain(0.2)
    assert len(results) == 18
    for (from_hz, tone_hz), (num_samples, level) in results.items():
        assert abs(num_samples - 24_000) <= 1
        decibels = 20 * math.log10(level + 1e-9)
        if tone_hz < 12_000:
            assert abs(decibels) < 0.5, (from_hz, tone_hz)
        else:
            assert decibels < -60, (from_hz, tone_hz)
