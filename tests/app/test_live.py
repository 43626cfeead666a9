from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from app import messages as m
from app.config import AppConfig
from app.errors import SessionLimitReached
from app.live import LiveRuntime, LiveSession
from app.runtime import Runtime
from asr.audio import read_file
from tts.worker import SpeechQueueFull, SpeechWorker

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    smollm2_path: Path, whisper_path: Path, smart_turn_path: Path
) -> AsyncIterator[LiveRuntime]:
    """Started once: an engine that was stopped does not start again."""
    runtime = Runtime.load(AppConfig(max_sessions=2, max_reply_tokens=16))
    live = LiveRuntime(runtime)
    await live.start()
    yield live
    assert live.num_sessions == 0
    await live.stop()
    runtime.engine.check_integrity()


async def events_until(session: LiveSession, kind: type[m.ServerEvent]) -> list[m.ServerEvent]:
    seen: list[m.ServerEvent] = []
    async with asyncio.timeout(60):
        async for event in session.events():
            seen.append(event)
            if isinstance(event, kind):
                break
    return seen


async def test_a_stream_that_stops_in_the_middle_still_ends_its_turn_and_is_answered(
    live: LiveRuntime, bundled_clips: Path
) -> None:
    session = live.open_session()
    await session.send(m.AudioReceived(read_file(bundled_clips / "brooklyn_bridge.wav")))
    events = await events_until(session, m.TurnMeasured)
    kinds = [type(event) for event in events]
    assert kinds.index(m.UserSpeechStopped) < kinds.index(m.ReplyAudio)
    (final,) = [event for event in events if isinstance(event, m.TranscriptFinal)]
    assert "bridge" in final.text.lower()
    await session.close()


async def test_typing_is_answered_without_any_audio(live: LiveRuntime) -> None:
    session = live.open_session(m.SettingsChanged(output_audio=False))
    await session.send(m.TextTyped("Say hel", final=False))
    await session.send(m.TextTyped("Say hello.", final=True))
    events = await events_until(session, m.TurnMeasured)
    assert "".join(event.delta for event in events if isinstance(event, m.ReplyText)).strip()
    assert not any(isinstance(event, m.ReplyAudio) for event in events)
    await session.close()


async def test_sessions_beyond_the_limit_are_refused_until_one_closes(
    live: LiveRuntime,
) -> None:
    sessions = [live.open_session(), live.open_session()]
    with pytest.raises(SessionLimitReached, match="2 sessions"):
        live.open_session()
    await sessions[0].close()
    await sessions[0].close()  # again: no harm
    assert live.num_sessions == 1
    await live.open_session().close()
    await sessions[1].close()


async def test_a_client_that_never_reads_ends_its_own_session_only(
    live: LiveRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.live.MAX_QUEUED_EVENTS", 4)
    deaf, other = live.open_session(), live.open_session()
    monkeypatch.undo()
    for number in range(10):
        await deaf.send(m.MessageDeleted(f"missing-{number}"))
    events = await events_until(deaf, m.TurnMeasured)  # ends with the session
    assert isinstance(events[-1], m.ErrorReported)
    assert events[-1].code == "client_too_slow" and events[-1].fatal
    await other.send(m.TextTyped("Say yes.", final=True))
    assert isinstance((await events_until(other, m.TurnMeasured))[-1], m.TurnMeasured)
    await deaf.close()
    await other.close()


async def test_silence_never_starts_a_turn(live: LiveRuntime) -> None:
    session = live.open_session()
    await session.send(m.AudioReceived(np.zeros(16_000, np.float32)))
    await asyncio.sleep(0.5)
    await session.close()
    assert [event async for event in session.events()] == []


async def test_a_client_is_told_that_its_reply_cannot_be_spoken(
    live: LiveRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(worker: SpeechWorker, *request: object) -> None:
        raise SpeechQueueFull(64)

    monkeypatch.setattr(SpeechWorker, "submit", refuse)
    session = live.open_session()
    await session.send(m.TextTyped("Say hello, then say goodbye.", final=True))
    events = await events_until(session, m.TurnMeasured)
    errors = [event for event in events if isinstance(event, m.ErrorReported)]
    assert [error.code for error in errors] == ["speech_failed"]
    assert any(isinstance(event, m.ReplyText) for event in events)
    await session.close()
