"""A session source that follows a script: what the caller is told depends only on what it sends.

Half a second of audio is an utterance; it is answered with "Reply N." and a tone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from app import messages as m
from app.errors import SessionLimitReached
from llm_engine.errors import EngineUnavailable

RATE_HZ = 24_000
UTTERANCE_SAMPLES = 8_000  # at 16 kHz
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.float32)


class ScriptedSession:
    def __init__(self, name: str, owner: ScriptedRuntime) -> None:
        self.name = name
        self.commands: list[m.ClientCommand] = []
        self.is_closed = False
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self._owner = owner
        self._events: asyncio.Queue[m.ServerEvent | None] = asyncio.Queue()
        self._num_samples = 0
        self._num_items = 0
        self._settings = m.SettingsChanged()
        self._jobs: set[asyncio.Task[None]] = set()

    async def send(self, command: m.ClientCommand) -> None:
        self.commands.append(command)
        match command:
            case m.AudioReceived(samples=samples):
                self._num_samples += len(samples)
                if self._num_samples >= UTTERANCE_SAMPLES:
                    self._num_samples -= UTTERANCE_SAMPLES
                    self._hear()
            case m.TextTyped(text=text, final=final):
                if final:
                    item_id = self._item()
                    self.emit(m.TranscriptFinal(item_id, text.strip()))
                    self._reply_to(item_id)
                else:
                    self.emit(m.DraftShown("", 0, f"Draft for {text}"))
            case m.ReplyRequested():
                self._reply_to(None)
            case m.SettingsChanged():
                self._settings = command

    async def events(self) -> AsyncIterator[m.ServerEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            for job in self._jobs:
                job.cancel()
            self._owner.sessions.remove(self)
            self._events.put_nowait(None)

    def emit(self, *events: m.ServerEvent) -> None:
        for event in events:
            self._events.put_nowait(event)

    def _item(self) -> str:
        self._num_items += 1
        return f"item_{self.name}_{self._num_items}"

    def _hear(self) -> None:
        item_id = self._item()
        self.emit(
            m.UserSpeechStarted(item_id, 0),
            m.TranscriptChanged(item_id, 1, "What is", "two plus"),
            m.DraftShown(item_id, 1, "Reply draft"),
            m.UserSpeechStopped(item_id, 500, 400),
            m.TranscriptFinal(item_id, "What is two plus two?"),
        )
        self._reply_to(item_id)

    def _reply_to(self, item_id: str | None) -> None:
        job = asyncio.create_task(self._reply(item_id))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _reply(self, answered: str | None) -> None:
        item_id = self._item()
        reply = {"reply_id": f"resp_{item_id}", "item_id": item_id}
        text = f"Reply {self._num_items // 2}."
        self.emit(m.ReplyStarted(**reply, in_reply_to=answered), m.ReplyText(**reply, delta=text))
        if self._settings.output_audio is not False:
            self.emit(m.ReplyAudio(**reply, samples=TONE, sample_rate_hz=RATE_HZ, text=text))
        await self.may_finish.wait()
        usage = {"prompt_tokens": 20, "cached_tokens": 12, "reply_tokens": 3}
        self.emit(m.ReplyFinished(**reply, reason="completed", text=text, usage=usage))
        metrics = {
            "speech_end_s": 0.4,
            "eou_s": 0.6,
            "endpoint_delay_ms": 200.0,
            "ready_lag_ms": 0.0,
            "ready_at_eou": True,
            "response_delay_ms": 201.0,
            "ttft_ms": 0.0,
            "lead_time_ms": 150.0,
            "drafted_tokens": 9,
            "accepted_tokens": 3,
        }
        if answered is not None:
            self.emit(m.TurnMeasured(answered, metrics))


class ScriptedRuntime:
    def __init__(self, max_sessions: int = 4) -> None:
        self.max_sessions = max_sessions
        self.sessions: list[ScriptedSession] = []
        self.num_opened = 0
        self.rest: str | None = None  # why the engine opens no session, if it opens none

    @property
    def num_sessions(self) -> int:
        return len(self.sessions)

    def open_session(self, change: m.SettingsChanged | None = None) -> ScriptedSession:
        if len(self.sessions) >= self.max_sessions:
            raise SessionLimitReached(self.max_sessions)
        if self.rest is not None:
            raise EngineUnavailable(self.rest)
        self.num_opened += 1
        session = ScriptedSession(str(self.num_opened), self)
        self.sessions.append(session)
        return session
