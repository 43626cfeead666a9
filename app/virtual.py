"""The simulated shell: one session on a virtual clock, workers run inline, deterministic.

A discrete-event simulation: audio frames arrive every 20 ms of virtual time; recogniser, engine
and voice are servers that do one job at a time. A job is really computed when it starts, and its
results are delivered when its cost has passed. The clock advances only when nothing is due at the
present moment, so that a recording replays the same way however slow the machine is.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from app import messages as m
from app.errors import CostTableInvalid
from app.runtime import Runtime
from app.session_settings import SessionSettings
from asr import events as heard
from asr.worker import run_inline
from llm_engine import events as thought
from llm_engine.engine import StepReport
from tts.worker import SpeechRequest, SpeechWorker

FRAME_S = 0.02
MAX_AFTER_END_S = 120.0  # a reply that takes longer than this after its turn is given up


@dataclass(frozen=True, slots=True)
class Costs:
    """What computing costs on the machine that is simulated, in milliseconds."""

    partial_ms: float = 0.0
    final_ms: float = 0.0
    turn_check_ms: float = 0.0
    prefill_token_ms: float = 0.0
    decode_pass_ms: float = 0.0
    tts_second_ms: float = 0.0

    @classmethod
    def load(cls, path: Path) -> Costs:
        """Read a table written by `replay --calibrate`. Raises CostTableInvalid."""
        try:
            values = json.loads(path.read_text())
            return cls(**{key: float(value) for key, value in values.items()})
        except (OSError, ValueError, TypeError, AttributeError) as cause:
            raise CostTableInvalid(path, str(cause)) from cause

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def of_step(self, report: StepReport) -> float:
        """Seconds of one engine step: its passes, and every token beyond one per pass."""
        if not report.num_passes:
            return 0.0
        extra_tokens = max(0, report.num_tokens - report.num_passes)
        return (
            report.num_passes * self.decode_pass_ms + extra_tokens * self.prefill_token_ms
        ) / 1e3

    def of_request(self, request: heard.AsrRequest) -> float:
        if isinstance(request, heard.TurnCheckRequest):
            return self.turn_check_ms / 1e3
        return (self.partial_ms if request.kind == "partial" else self.final_ms) / 1e3


class VirtualClock:
    """The simulated time, shared by the engine and the call. Give it to `Runtime.load`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Job:
    """What one job of a server took, for calibration."""

    kind: str  # "partial", "final", "turn_check", "step" or "speech"
    seconds: float
    num_passes: int = 0
    num_tokens: int = 0
    audio_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event for the client, and the virtual second at which it left."""

    at_s: float
    event: m.ServerEvent


class VirtualCall:
    """One session fed with recorded frames. `costs` None: what a job takes is measured."""

    def __init__(
        self,
        runtime: Runtime,
        clock: VirtualClock,
        settings: SessionSettings,
        costs: Costs | None,
    ) -> None:
        self.runtime = runtime
        self.costs = costs
        self._clock = clock
        self.now_s = 0.0
        self.events: list[Stamped] = []
        self.jobs: list[Job] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ears = _AsrServer(self)
        self._voice = _VoiceServer(self)
        self._mind = _EngineServer(self)
        self.session = runtime.new_session(
            "call",
            settings,
            ears=self._ears,
            voice=self._voice,
            emit=lambda event: self.events.append(Stamped(self.now_s, event)),
            on_thought=self._mind.collect,
        )

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @now_s.setter
    def now_s(self, time_s: float) -> None:
        self._clock.now_s = time_s

    def run(self, frames: Iterable[np.ndarray], until: Callable[[list[Stamped]], bool]) -> None:
        """Feed frames [320] float32 until they end or `until` says so; then let replies finish."""
        for index, frame in enumerate(frames):
            self._run_until((index + 1) * FRAME_S)
            self.call(partial(self._hear, frame))
            if until(self.events):
                break
        self._run_until(self.now_s + MAX_AFTER_END_S, stop_when_idle=True)

    def _hear(self, frame: np.ndarray) -> None:
        self.session.on_command(m.AudioReceived(frame), self.now_s)

    def close(self) -> None:
        self.session.close()
        while self.runtime.engine.step() is not None:
            pass

    def call(self, change: Callable[[], None]) -> None:
        """Let something happen to the session now, then start whatever work that made."""
        change()
        self._mind.reconsider()
        for server in (self._ears, self._mind, self._voice):
            server.start_next()

    def at(self, time_s: float, change: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._order), change))

    def timed(self, job: Callable[[], object]) -> float:
        """Run a job; its seconds, for `--compute measured`."""
        started_s = time.perf_counter()
        job()
        return time.perf_counter() - started_s

    def _run_until(self, time_s: float, *, stop_when_idle: bool = False) -> None:
        while self._due and self._due[0][0] <= time_s:
            self.now_s, _, change = heapq.heappop(self._due)
            self.call(change)
        if not stop_when_idle:
            self.now_s = time_s


class _AsrServer:
    """The recogniser's queue: finals first, then turn checks, of the partials only the newest."""

    def __init__(self, call: VirtualCall) -> None:
        self._call = call
        self._waiting: list[heard.AsrRequest] = []
        self._is_busy = False

    def submit(self, request: heard.AsrRequest) -> None:
        if _rank(request) == 2:
            stale = [other for other in self._waiting if _rank(other) == 2]
            for other in stale:
                self._waiting.remove(other)
                dropped = heard.DecodeResult(other.utterance, other.revision, "", dropped=True)
                self._call.at(self._call.now_s, self._deliver(dropped))
        self._waiting.append(request)

    def start_next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        request = min(self._waiting, key=lambda waiting: (_rank(waiting), waiting.revision))
        self._waiting.remove(request)
        results: list[heard.AsrResult] = []
        runtime, costs = self._call.runtime, self._call.costs
        measured_s = self._call.timed(
            lambda: results.append(run_inline(runtime.recogniser, runtime.smart_turn, request))
        )
        self._call.jobs.append(Job(_kind(request), measured_s))
        cost_s = measured_s if costs is None else costs.of_request(request)
        self._is_busy = True
        self._call.at(self._call.now_s + cost_s, self._done(results[0]))

    def _done(self, result: heard.AsrResult) -> Callable[[], None]:
        def finish() -> None:
            self._is_busy = False
            self._deliver(result)()

        return finish

    def _deliver(self, result: heard.AsrResult) -> Callable[[], None]:
        return lambda: self._call.session.on_heard(result, self._call.now_s)


def _kind(request: heard.AsrRequest) -> str:
    if isinstance(request, heard.TurnCheckRequest):
        return "turn_check"
    return "partial" if request.kind == "partial" else "final"


def _rank(request: heard.AsrRequest) -> int:
    return {"final": 0, "turn_check": 1, "partial": 2}[_kind(request)]


class _EngineServer:
    """The engine, one step at a time. What a step says is heard when the step's cost has passed."""

    def __init__(self, call: VirtualCall) -> None:
        self._call = call
        self._collected: list[thought.EngineEvent] = []
        self._is_busy = False
        self._finish: Callable[[], None] = lambda: None  # what ends the step under way
        self._ended_at_s: dict[float, float] = {}  # engine clock at a step's start -> virtual end

    def collect(self, event: thought.EngineEvent) -> None:
        self._collected.append(event)

    def start_next(self) -> None:
        if self._is_busy:
            return
        engine, costs = self._call.runtime.engine, self._call.costs
        self._collected = []
        reports: list[StepReport | None] = []
        measured_s = self._call.timed(lambda: reports.append(engine.step()))
        report = reports[0]
        if report is None and not self._collected:
            return
        cost_s = 0.0
        if report is not None:
            self._call.jobs.append(
                Job("step", measured_s, num_passes=report.num_passes, num_tokens=report.num_tokens)
            )
            if report.is_charged:  # what only scores a baseline's transcripts costs it nothing
                cost_s = measured_s if costs is None else costs.of_step(report)
        end_s = self._call.now_s + cost_s
        self._ended_at_s[self._call.now_s] = end_s
        self._is_busy = True
        self._finish = self._done(self._collected)
        self._call.at(end_s, self._finish)

    def reconsider(self) -> None:
        """A step that the engine would give up ends now. What it had computed stays, which is one
        token of a draft too good; its time is not charged."""
        if self._is_busy and not self._call.runtime.engine.would_go_on():
            self._call.at(self._call.now_s, self._finish)

    def _done(self, events: list[thought.EngineEvent]) -> Callable[[], None]:
        is_over = False

        def finish() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._is_busy = False
            for event in events:
                if isinstance(event, thought.ReplyDelta):
                    decided = tuple(self._ended_at_s.get(t, t) for t in event.decided_at_s)
                    event = replace(event, decided_at_s=decided)
                self._call.session.on_engine_event(event, self._call.now_s)

        return finish


class _VoiceServer:
    """The synthesizer: committed pieces before held ones, one at a time."""

    def __init__(self, call: VirtualCall) -> None:
        self._call = call
        self._waiting: deque[SpeechRequest] = deque()
        self._is_busy = False
        self._worker = SpeechWorker(call.runtime.synthesizer)

    def submit(self, key: str, text: str, *, held: bool) -> None:
        self._waiting.append(SpeechRequest(key, "call", text, is_held=held))

    def promote(self, key: str) -> None:
        self._waiting = deque(
            replace(waiting, is_held=False) if waiting.key == key else waiting
            for waiting in self._waiting
        )

    def cancel(self, key: str) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting.key != key)

    def start_next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        request = min(self._waiting, key=lambda waiting: waiting.is_held)
        self._waiting.remove(request)
        result = self._worker.run_inline(request)
        costs = self._call.costs
        self._call.jobs.append(Job("speech", result.done.compute_s, audio_s=result.done.audio_s))
        cost_s = (
            result.done.compute_s
            if costs is None
            else costs.tts_second_ms * result.done.audio_s / 1e3
        )
        self._is_busy = True

        def finish() -> None:
            self._is_busy = False
            for chunk in result.chunks:
                self._call.session.on_spoken(chunk.key, chunk.samples, False, self._call.now_s)
            self._call.session.on_spoken(request.key, None, True, self._call.now_s)

        self._call.at(self._call.now_s + cost_s, finish)
