"""Scripted stand-ins for a session's workers: they record what was asked, and only that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app import messages as m
from app.conversation import Conversation
from app.prompt_spec import PromptSpec
from app.session import Session
from app.session_settings import SessionSettings
from asr import events as heard
from asr.settings import ListenerSettings
from llm_engine import events as thought
from llm_engine.chat import ChatMessage
from llm_engine.errors import EngineUnavailable, PromptTooLong, UnknownSession
from llm_engine.prompt import Segment, Snapshot
from llm_engine.template import TemplateRejected

RATE_HZ = 24_000
AUDIO = m.AudioReceived(np.zeros(320, np.float32))


def _ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


class FakeTemplate:
    """One token per byte, one segment per message. Takes no message that says "odd"."""

    def segments(
        self,
        system: str,
        history: Sequence[ChatMessage],
        slot: str,
        *,
        before: str = "",
        after: str = "",
    ) -> tuple[Segment, ...]:
        if any("odd" in text for text in (slot, *(message.text for message in history))):
            raise TemplateRejected([message.role for message in history], "odd")
        return (
            Segment("system", "prefix", _ids(system)),
            *(
                Segment(f"history.{index}", "history", _ids(f"{message.role}:{message.text}|"))
                for index, message in enumerate(history)
            ),
            Segment("slot", "slot", _ids(before + slot)),
            Segment("suffix", "suffix", _ids(after + "|assistant:")),
        )


@dataclass
class FakeEngine:
    max_prompt_tokens: int = 10_000
    opened: list[thought.SessionConfig] = field(default_factory=list)
    updates: list[Snapshot] = field(default_factory=list)  # with words in them
    warmed: list[Snapshot] = field(default_factory=list)  # without
    commits: list[Snapshot] = field(default_factory=list)
    truncated: list[tuple[int, int]] = field(default_factory=list)
    held_replies: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    num_cancelled: int = 0
    rest: str | None = None  # why no session is opened, if none is

    def open(self, config: thought.SessionConfig, on_event: thought.OnEvent) -> str:
        if self.rest is not None:
            raise EngineUnavailable(self.rest)
        self.opened.append(config)
        return f"engine-{len(self.opened)}"

    def update(self, session_id: str, snapshot: Snapshot) -> None:
        self._require_open(session_id)
        self._check(snapshot)
        has_words = any(s.role == "slot" and s.token_ids for s in snapshot.segments)
        (self.updates if has_words else self.warmed).append(snapshot)

    def commit(self, session_id: str, snapshot: Snapshot) -> int:
        self._require_open(session_id)
        self._check(snapshot)
        self.held_replies.discard(session_id)
        self.commits.append(snapshot)
        return len(self.commits) - 1

    def cancel(self, session_id: str) -> None:
        self._require_open(session_id)
        self.held_replies.discard(session_id)
        self.num_cancelled += 1

    def truncate(self, session_id: str, turn: int, num_reply_tokens: int) -> None:
        self._require_open(session_id)
        self.truncated.append((turn, num_reply_tokens))

    def hold_reply(self, session_id: str) -> None:
        if session_id not in self.closed:
            self.held_replies.add(session_id)

    def release_reply(self, session_id: str) -> None:
        self.held_replies.discard(session_id)

    def close(self, session_id: str) -> None:
        self.held_replies.discard(session_id)
        self.closed.append(session_id)

    def _require_open(self, session_id: str) -> None:
        if session_id in self.closed:
            raise UnknownSession(session_id)

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.num_tokens > self.max_prompt_tokens:
            raise PromptTooLong(snapshot.num_tokens, self.max_prompt_tokens)


@dataclass
class FakeListener:
    """`push` hands out the next scripted list of events."""

    now_s: float = 0.0
    script: list[list[heard.ListenerEvent]] = field(default_factory=list)
    scores: list[tuple[int, int, float]] = field(default_factory=list)
    settings: ListenerSettings = field(default_factory=ListenerSettings)
    num_resets: int = 0

    def push(self, samples: np.ndarray) -> list[heard.ListenerEvent]:
        self.now_s += len(samples) / 16_000
        return self.script.pop(0) if self.script else []

    def on_result(self, result: heard.AsrResult) -> list[heard.ListenerEvent]:
        return self.script.pop(0) if self.script else []

    def on_end_probability(
        self, utterance: int, revision: int, probability: float
    ) -> list[heard.ListenerEvent]:
        self.scores.append((utterance, revision, probability))
        return []

    def commit(self) -> list[heard.ListenerEvent]:
        return self.script.pop(0) if self.script else []

    def reset(self) -> list[heard.ListenerEvent]:
        self.num_resets += 1
        return self.script.pop(0) if self.script else []

    def configure(self, settings: ListenerSettings) -> None:
        self.settings = settings


@dataclass
class FakeVoice:
    spoken: dict[str, str] = field(default_factory=dict)  # key -> text, in order of asking
    held: set[str] = field(default_factory=set)
    cancelled: list[str] = field(default_factory=list)

    def submit(self, key: str, text: str, *, held: bool) -> None:
        self.spoken[key] = text
        if held:
            self.held.add(key)

    def promote(self, key: str) -> None:
        self.held.discard(key)

    def cancel(self, key: str) -> None:
        self.cancelled.append(key)


class FakeEars:
    def __init__(self) -> None:
        self.requests: list[heard.AsrRequest] = []

    def submit(self, request: heard.AsrRequest) -> None:
        self.requests.append(request)


class Stage:
    """A session among fakes, with the verbs a scripted caller needs."""

    def __init__(self, settings: SessionSettings | None = None, max_prompt_tokens: int = 10_000):
        self.engine, self.listener = FakeEngine(max_prompt_tokens), FakeListener()
        self.voice, self.ears = FakeVoice(), FakeEars()
        self.events: list[m.ServerEvent] = []
        self.now_s = 0.0
        self._revision = 0
        self._utterance = 0
        self.conversation = Conversation(FakeTemplate(), PromptSpec("be brief"), max_prompt_tokens)  # type: ignore[arg-type]
        self.session = Session(
            "s",
            settings=settings or SessionSettings(),
            conversation=self.conversation,
            listener=self.listener,  # type: ignore[arg-type]
            ears=self.ears,
            engine=self.engine,  # type: ignore[arg-type]
            voice=self.voice,
            sample_rate_hz=RATE_HZ,
            emit=self.events.append,
            on_thought=lambda event: None,
        )

    @property
    def engine_id(self) -> str:
        return f"engine-{len(self.engine.opened)}"

    def of_type(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def hears(self, *events: heard.ListenerEvent) -> None:
        self.listener.script.insert(0, list(events))
        self.session.on_command(AUDIO, self.now_s)

    def starts_speaking(self) -> None:
        self._utterance += 1
        self.hears(heard.SpeechStarted(self._utterance, self.listener.now_s))

    def transcript(self, text: str, *, at_pause: bool = False) -> heard.Transcript:
        self._revision += 1
        return heard.Transcript(
            self._utterance, self._revision, "", text, text, text, at_pause, self.listener.now_s
        )

    def says(self, text: str, *, at_pause: bool = False) -> None:
        self.hears(self.transcript(text, at_pause=at_pause))

    def ends(self, text: str | None) -> None:
        transcript = None if text is None else self.transcript(text, at_pause=True)
        end_s = self.listener.now_s
        self.hears(heard.UtteranceEnded(self._utterance, end_s, end_s - 0.3, transcript, "likely"))

    def asks(self, text: str) -> None:
        self.starts_speaking()
        self.says(text)
        self.ends(text)

    def waits(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.02)):
            self.now_s += 0.02
            self.session.on_command(AUDIO, self.now_s)

    def drafts(self, text: str, *, is_complete: bool = False) -> None:
        revision = self.engine.updates[-1].revision
        self.session.on_engine_event(
            thought.DraftChanged(
                self.engine_id, revision, 0, tuple(text.encode()), text, is_complete
            ),
            self.now_s,
        )

    def replies(self, text: str) -> None:
        """The engine decides some words of the running reply, one token per character."""
        turn = len(self.engine.commits) - 1
        times = (self.now_s,) * len(text)
        self.session.on_engine_event(
            thought.ReplyDelta(self.engine_id, turn, 0, tuple(text.encode()), text, times),
            self.now_s,
        )

    def generates(self, text: str, *, turn: int | None = None, reason: str = "stop") -> None:
        """The engine delivers a whole reply, one token per character."""
        turn = len(self.engine.commits) - 1 if turn is None else turn
        times = (self.now_s,) * len(text)
        self.session.on_engine_event(
            thought.ReplyDelta(self.engine_id, turn, 0, tuple(text.encode()), text, times),
            self.now_s,
        )
        stats = thought.TurnStats(reply_tokens=len(text))
        self.session.on_engine_event(
            thought.ReplyDone(self.engine_id, turn, reason, stats),  # type: ignore[arg-type]
            self.now_s,
        )

    def speaks(self, key: str, seconds: float = 1.0) -> None:
        """The voice finishes a piece."""
        samples = np.ones(int(seconds * RATE_HZ), np.float32)
        self.session.on_spoken(key, samples, False, self.now_s)
        self.session.on_spoken(key, None, True, self.now_s)

    def speaks_all(self, seconds: float = 1.0) -> None:
        for key in list(self.voice.spoken):
            if key not in self.voice.cancelled:
                self.speaks(key, seconds)
                self.voice.cancelled.append(key)
