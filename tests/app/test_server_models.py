"""A conversation through the real server with the real models, by the official client."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from app.config import AppConfig
from app.live import LiveRuntime
from app.protocols.realtime import SessionDefaults
from app.runtime import Runtime
from app.server import Server
from asr.audio import Resampler, float_to_pcm16, read_file

CLIP = Path(__file__).parent.parent / "clips" / "brooklyn_bridge.wav"
FRAME_BYTES = 960  # 20 ms
TIMEOUT_S = 120.0

pytestmark = pytest.mark.models


@pytest.fixture
async def server():
    runtime = await asyncio.to_thread(Runtime.load, AppConfig(port=0, max_reply_tokens=24))
    live = LiveRuntime(runtime)
    server = Server(live, runtime.config, SessionDefaults())
    await live.start()
    await server.start()
    yield server
    await server.drain(0.2)
    await live.stop()
    assert live.num_sessions == 0


async def speak(connection: Any, *, silence_s: float) -> None:
    """Say the clip and then nothing, in frames, as fast as the server takes them."""
    samples = np.concatenate([read_file(CLIP), np.zeros(int(silence_s * 16_000), np.float32)])
    resampler = Resampler(16_000, 24_000)
    data = float_to_pcm16(np.concatenate([resampler.push(samples), resampler.finish()]))
    for start in range(0, len(data), FRAME_BYTES):
        frame = base64.b64encode(data[start : start + FRAME_BYTES]).decode()
        await connection.input_audio_buffer.append(audio=frame)


class Turn:
    """What the client was told, up to the reply's end."""

    def __init__(self) -> None:
        self.transcript = self.reply = ""
        self.num_audio_bytes = 0
        self.types: list[str] = []
        self.response: Any = None


async def listen(connection: Any) -> Turn:
    turn = Turn()
    async with asyncio.timeout(TIMEOUT_S):
        async for event in connection:
            turn.types.append(event.type)
            match event.type:
                case "error":
                    pytest.fail(event.error.message)
                case "conversation.item.input_audio_transcription.completed":
                    turn.transcript = event.transcript
                case "response.output_audio_transcript.done":
                    turn.reply = event.transcript
                case "response.output_text.done":
                    turn.reply = event.text
                case "response.output_audio.delta":
                    turn.num_audio_bytes += len(base64.b64decode(event.delta))
                case "response.done":
                    turn.response = event.response
                    return turn
    raise AssertionError("the connection ended within the turn")


async def test_three_turns_by_voice_by_text_and_by_push_to_talk(server):
    openai = AsyncOpenAI(api_key="unused", base_url=server.url + "v1")
    async with openai, openai.realtime.connect(model="any") as connection:
        await speak(connection, silence_s=2.0)
        spoken = await listen(connection)
        assert "bridge" in spoken.transcript.lower()
        assert spoken.reply and spoken.num_audio_bytes > 20_000
        assert spoken.response.status in ("completed", "incomplete")
        assert spoken.response.usage.output_tokens > 0

        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        words = [{"type": "input_text", "text": "And where is it?"}]
        await connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": words}
        )
        await connection.response.create()
        written = await listen(connection)
        assert written.reply and written.num_audio_bytes == 0

        await connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["audio"],
                "audio": {"input": {"turn_detection": None}},
            }
        )
        await speak(connection, silence_s=0.0)
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        pushed = await listen(connection)
        assert "bridge" in pushed.transcript.lower()
        assert pushed.reply and pushed.num_audio_bytes > 20_000
        assert "input_audio_buffer.committed" in pushed.types
        assert "input_audio_buffer.speech_started" not in pushed.types
        replies = [spoken.response.id, written.response.id, pushed.response.id]
        assert len(set(replies)) == 3
