"""The real-time shell: sessions on one event loop, models on worker threads.

Worker threads hand their results to the loop with `call_soon_threadsafe`; a session is touched by
the loop alone. Audio time never stands still: when a stream stalls, silence is put in its place.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import structlog

from app import messages as m
from app.errors import SessionLimitReached
from app.runtime import Runtime
from app.session import Session
from app.session_settings import SessionSettings
from asr import events as heard
from asr.audio import SAMPLE_RATE_HZ
from asr.worker import AsrWorker
from llm_engine import events as thought
from tts.worker import SpeechChunk, SpeechDone, SpeechQueueFull, SpeechRequest, SpeechWorker

logger = structlog.get_logger()

FRAME_SAMPLES = SAMPLE_RATE_HZ // 50
STALL_S = 0.2  # a stream that is silent for this long gets silence inserted
MAX_QUEUED_COMMANDS = 64  # overflow policy: `send` waits, so the socket is not read
MAX_QUEUED_EVENTS = 4096  # overflow policy: the session fails; its client does not read
AHEAD_S = 0.1  # audio may run ahead of the clock this far while a decode is awaited


class LiveRuntime:
    """Owns the worker threads and the open sessions."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        config = runtime.config
        self._asr = AsrWorker(
            runtime.recogniser,
            runtime.smart_turn,
            num_threads=config.threads.recogniser_workers,
        )
        self._speech = SpeechWorker(runtime.synthesizer, on_busy=self._on_speaking)
        self._num_finals = self._num_partials = 0  # decodes asked for, their results not taken in
        self._sessions: dict[str, LiveSession] = {}
        self._names = itertools.count(1)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Start the workers."""
        self.runtime.engine.start()
        self._asr.start()
        self._speech.start()

    async def stop(self) -> None:
        """End all sessions and workers."""
        for session in list(self._sessions.values()):
            await session.close()
        await asyncio.to_thread(self._speech.stop)
        await asyncio.to_thread(self._asr.stop)
        await asyncio.to_thread(self.runtime.engine.stop)

    def open_session(
        self, change: m.SettingsChanged | None = None, settings: SessionSettings | None = None
    ) -> LiveSession:
        """A new session. Raises SessionLimitReached."""
        if len(self._sessions) >= self.runtime.config.max_sessions:
            raise SessionLimitReached(self.runtime.config.max_sessions)
        name = f"{next(self._names):06d}"
        session = LiveSession(
            name, self, settings or default_settings(self.runtime), self._asr, self._speech
        )
        self._sessions[name] = session
        self._weigh_decodes()
        if change is not None:
            session.configure(change)
        return session

    # What a turn waits for goes before what is computed ahead: all share the same few cores.

    def _on_speaking(self, is_busy: bool) -> None:
        """On the voice's thread."""
        self._hold_speculation("voice", is_busy)

    def on_decodes(self, change: int, *, is_partial: bool) -> None:
        """Decodes were asked for, or their results taken in: by then the engine has the new words
        and does not go on with the old ones."""
        if is_partial:
            self._num_partials += change
        else:
            self._num_finals += change
        self._weigh_decodes()

    def _weigh_decodes(self) -> None:
        """A final is what its turn waits for. A partial will change the words that its own session
        drafts on, and no other's: among several, one is nearly always out."""
        is_alone = len(self._sessions) == 1
        is_held = self._num_finals > 0 or (is_alone and self._num_partials > 0)
        self._hold_speculation("recogniser", is_held)

    def _hold_speculation(self, holder: str, is_held: bool) -> None:
        engine = self.runtime.engine
        if engine.shares_cpu:
            (engine.hold_speculation if is_held else engine.release_speculation)(holder)

    def forget(self, name: str) -> None:
        self._sessions.pop(name, None)
        self._weigh_decodes()


def default_settings(runtime: Runtime) -> SessionSettings:
    """What the configuration says for every session."""
    config = runtime.config
    return SessionSettings(
        output_audio=config.speech != "none",
        prices=config.prices,
        engine=thought.SessionConfig(
            seed=config.seed,
            draft_policy=runtime.draft_policy,
            max_draft_tokens=config.max_draft_tokens,
            sampling=thought.SamplingParams(
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=config.max_reply_tokens,
            ),
        ),
    )


class LiveSession:
    """One client's session. `send` and `events` may be used by two tasks; each by one at a time."""

    def __init__(
        self,
        name: str,
        owner: LiveRuntime,
        settings: SessionSettings,
        asr: AsrWorker,
        speech: SpeechWorker,
    ) -> None:
        self.name = name
        self._owner = owner
        self._asr = asr
        self._speech = speech
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[m.ClientCommand] = asyncio.Queue(MAX_QUEUED_COMMANDS)
        self._outbox: asyncio.Queue[m.ServerEvent | None] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._clock_zero_s = time.perf_counter()
        self._has_audio = False
        self._audio_s = 0.0
        self._decodes_out: Counter[bool] = Counter()  # by whether they are partials
        self._num_awaited = 0  # decodes that audio must not run away from
        self._all_answered = asyncio.Event()
        self._closed = False
        self._has_failed = False
        self._session: Session = owner.runtime.new_session(
            name,
            settings,
            ears=self,
            voice=_LiveVoice(self, speech),
            emit=self._emit,
            on_thought=self._on_thought,
        )
        self._task = asyncio.create_task(self._run(), name=f"session-{name}")

    @property
    def now_s(self) -> float:
        """Seconds since the stream's first sample (since opening, before there is one)."""
        return time.perf_counter() - self._clock_zero_s

    def configure(self, change: m.SettingsChanged) -> None:
        self._session.on_command(change, self.now_s)

    async def send(self, command: m.ClientCommand) -> None:
        """Hand over a command; waits while too many are queued. Ignored once closed."""
        if not self._closed and not self._has_failed:
            await self._inbox.put(command)

    async def events(self) -> AsyncIterator[m.ServerEvent]:
        """What the session has to say, until it is closed."""
        while (event := await self._outbox.get()) is not None:
            yield event

    async def close(self) -> None:
        """End the session and give back all it holds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._forget_decodes()
        self._session.close()
        self._owner.forget(self.name)
        if self._outbox.full():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)

    # ---- the session's one task

    async def _run(self) -> None:
        while True:
            try:
                await self._take_next()
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("session failed", session=self.name)
                self._fail("internal_error", "the session failed")

    async def _take_next(self) -> None:
        try:
            async with asyncio.timeout(STALL_S if self._has_audio else None):
                command = await self._inbox.get()
        except TimeoutError:
            await self._insert_silence()
            return
        if isinstance(command, m.AudioReceived):
            for start in range(0, len(command.samples), FRAME_SAMPLES):
                await self._push(command.samples[start : start + FRAME_SAMPLES])
        else:
            self._session.on_command(command, self.now_s)

    async def _insert_silence(self) -> None:
        """Keep audio time going at the clock's pace until the client sends again."""
        while self._inbox.empty():
            behind_s = self.now_s - self._audio_s
            for _ in range(max(1, min(10, int(behind_s / 0.02)))):
                await self._push(np.zeros(FRAME_SAMPLES, np.float32))
            await asyncio.sleep(0.02)

    async def _push(self, samples: np.ndarray) -> None:
        seconds = len(samples) / SAMPLE_RATE_HZ
        if not self._has_audio:
            self._has_audio = True
            before_s = self.now_s
            self._clock_zero_s = time.perf_counter() - seconds
            self._session.move_clock(self.now_s - before_s)
        self._audio_s += seconds
        if self._num_awaited and self._audio_s > self.now_s + AHEAD_S:
            self._all_answered.clear()
            await self._all_answered.wait()
        self._session.on_command(m.AudioReceived(samples), self.now_s)
        await asyncio.sleep(0)

    def _emit(self, event: m.ServerEvent) -> None:
        if self._closed or self._has_failed:
            return
        if self._outbox.full():
            self._fail("client_too_slow", "the client does not read")
        else:
            self._outbox.put_nowait(event)

    def _fail(self, code: str, message: str) -> None:
        """Say why, as the last event, and do nothing more until the owner closes the session."""
        self._has_failed = True
        while self._outbox.qsize() > self._outbox.maxsize - 2:
            self._outbox.get_nowait()
        self._outbox.put_nowait(m.ErrorReported(code, message, fatal=True))
        self._outbox.put_nowait(None)
        self._forget_decodes()
        self._task.cancel()

    # ---- ports to the workers; results come back to the loop

    def submit(self, request: heard.AsrRequest) -> None:
        """The session's ears."""
        is_decode = isinstance(request, heard.DecodeRequest)
        is_partial = isinstance(request, heard.DecodeRequest) and request.kind == "partial"
        self._num_awaited += not is_partial
        if is_decode:
            self._count_decode(1, is_partial)

        def on_result(result: heard.AsrResult) -> None:
            self._hop(self._on_heard, result, is_decode, is_partial)

        self._asr.submit(self.name, request, on_result)

    def _on_heard(self, result: heard.AsrResult, is_decode: bool, is_partial: bool) -> None:
        self._num_awaited -= not is_partial
        if not self._num_awaited:
            self._all_answered.set()
        try:
            self._session.on_heard(result, self.now_s)
        finally:
            if is_decode:
                self._count_decode(-1, is_partial)

    def _count_decode(self, change: int, is_partial: bool) -> None:
        if not self._has_failed:
            self._decodes_out[is_partial] += change
            self._owner.on_decodes(change, is_partial=is_partial)

    def _forget_decodes(self) -> None:
        """Their results are not taken in any more."""
        self._asr.cancel(self.name)
        for is_partial, num_out in self._decodes_out.items():
            self._owner.on_decodes(-num_out, is_partial=is_partial)
        self._decodes_out.clear()

    def on_spoken(self, key: str, samples: np.ndarray | None, is_last: bool) -> None:
        self._hop(lambda: self._session.on_spoken(key, samples, is_last, self.now_s))

    def on_unspoken(self, key: str, why: str) -> None:
        self._hop(lambda: self._session.on_unspoken(key, why, self.now_s))

    def _on_thought(self, event: thought.EngineEvent) -> None:
        """On the engine's thread."""
        if isinstance(event, thought.ReplyDelta):
            zero_s = self._clock_zero_s
            event = replace(event, decided_at_s=tuple(t - zero_s for t in event.decided_at_s))
        self._hop(lambda: self._session.on_engine_event(event, self.now_s))

    def _hop(self, call: Any, *args: Any) -> None:
        """Continue on the event loop. A loop or session that is gone wants no more results."""

        def guarded() -> None:
            if self._closed or self._has_failed:
                return
            try:
                call(*args)
            except Exception:
                logger.exception("session failed", session=self.name)
                self._fail("internal_error", "the session failed")

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guarded)


class _LiveVoice:
    """The session's voice port on the shared speech worker."""

    def __init__(self, session: LiveSession, worker: SpeechWorker) -> None:
        self._session = session
        self._worker = worker

    def submit(self, key: str, text: str, *, held: bool) -> None:
        try:
            self._worker.submit(
                SpeechRequest(key, self._session.name, text, is_held=held),
                self._on_chunk,
                self._on_done,
            )
        except SpeechQueueFull as full:
            logger.warning("speech queue full", session=self._session.name)
            self._session.on_unspoken(key, str(full))

    def promote(self, key: str) -> None:
        self._worker.promote(key)

    def cancel(self, key: str) -> None:
        self._worker.cancel(key)

    def _on_chunk(self, chunk: SpeechChunk) -> None:
        self._session.on_spoken(chunk.key, chunk.samples, False)

    def _on_done(self, done: SpeechDone) -> None:
        if done.outcome == "failed":
            logger.warning("speech failed", session=self._session.name, error=done.error)
            self._session.on_unspoken(done.key, f"the voice failed: {done.error}")
            return
        self._session.on_spoken(done.key, None, True)
