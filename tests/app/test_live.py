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
from app.prompt_spec import default_prompt
from app.runtime import Runtime
from asr import events as heard
from asr.audio import read_file
from asr.worker import OnResult
from tests.app.fakes import FakeEngine, FakeTemplate
from tts.synthesizer import TextOnly
from tts.worker import SpeechQueueFull, SpeechWorker

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


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


@pytest.mark.models
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


@pytest.mark.models
async def test_typing_is_answered_without_any_audio(live: LiveRuntime) -> None:
    session = live.open_session(m.SettingsChanged(output_audio=False))
    await session.send(m.TextTyped("Say hel", final=False))
    await session.send(m.TextTyped("Say hello.", final=True))
    events = await events_until(session, m.TurnMeasured)
    assert "".join(event.delta for event in events if isinstance(event, m.ReplyText)).strip()
    assert not any(isinstance(event, m.ReplyAudio) for event in events)
    await session.close()


@pytest.mark.models
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


@pytest.mark.models
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


@pytest.mark.models
async def test_silence_never_starts_a_turn(live: LiveRuntime) -> None:
    session = live.open_session()
    await session.send(m.AudioReceived(np.zeros(16_000, np.float32)))
    await asyncio.sleep(0.5)
    await session.close()
    assert [event async for event in session.events()] == []


@pytest.mark.models
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


# ---- what gives way to whose decodes


class Mind(FakeEngine):
    max_prompt_tokens = 4096

    def __init__(self, *, shares_cpu: bool) -> None:
        super().__init__()
        self.shares_cpu = shares_cpu
        self.holders: set[str] = set()

    def hold_speculation(self, holder: str) -> None:
        self.holders.add(holder)

    def release_speculation(self, holder: str) -> None:
        self.holders.discard(holder)


class Recogniser:
    """In the worker's place: answers when it is told to."""

    def __init__(self, *args: object, num_threads: int) -> None:
        self.asked: list[tuple[heard.DecodeRequest, OnResult]] = []

    def submit(self, session_id: str, request: heard.DecodeRequest, on_result: OnResult) -> None:
        self.asked.append((request, on_result))

    def cancel(self, session_id: str) -> None:
        pass

    async def answers(self) -> None:
        for request, on_result in self.asked:
            on_result(heard.DecodeResult(request.utterance, request.revision, ""))
        self.asked.clear()
        await asyncio.sleep(0)


def live_on(mind: Mind, monkeypatch: pytest.MonkeyPatch) -> tuple[LiveRuntime, Recogniser]:
    monkeypatch.setattr("app.live.AsrWorker", Recogniser)
    runtime = Runtime(
        AppConfig(speech="none"),
        mind,  # type: ignore[arg-type]
        FakeTemplate(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        TextOnly(),
        default_prompt(),
    )
    live = LiveRuntime(runtime)
    return live, live._asr  # type: ignore[return-value]


def decode_request(kind: str) -> heard.DecodeRequest:
    return heard.DecodeRequest(0, 0, np.zeros(16, np.float32), 0.0, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "num_sessions", "shares_cpu", "is_held"),
    [
        ("partial", 1, True, True),
        ("partial", 2, True, False),
        ("pause", 1, True, True),
        ("pause", 2, True, True),
        ("segment", 2, True, True),
        ("partial", 1, False, False),
        ("pause", 2, False, False),
    ],
)
async def test_finals_hold_speculation_and_partials_only_that_of_a_lone_caller(
    kind: str,
    num_sessions: int,
    shares_cpu: bool,
    is_held: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mind = Mind(shares_cpu=shares_cpu)
    live, recogniser = live_on(mind, monkeypatch)
    sessions = [live.open_session() for _ in range(num_sessions)]
    sessions[0].submit(decode_request(kind))
    assert bool(mind.holders) is is_held
    await recogniser.answers()
    assert not mind.holders
    for session in sessions:
        await session.close()


async def test_a_second_caller_ends_the_hold_of_the_firsts_partial_until_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mind = Mind(shares_cpu=True)
    live, _ = live_on(mind, monkeypatch)
    first = live.open_session()
    first.submit(decode_request("partial"))
    second = live.open_session()
    assert not mind.holders
    await second.close()
    assert mind.holders == {"recogniser"}
    await first.close()
    assert not mind.holders


async def test_a_session_that_fails_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mind = Mind(shares_cpu=True)
    live, recogniser = live_on(mind, monkeypatch)
    session = live.open_session()
    session.submit(decode_request("pause"))
    session._fail("internal_error", "scripted")
    assert not mind.holders
    session.submit(decode_request("pause"))
    await recogniser.answers()
    assert not mind.holders
    await session.close()
