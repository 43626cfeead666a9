"""One conversation, without sockets, threads or clocks: the main path.

    caller's audio ─► listener ─transcripts─► conversation ─snapshots─► engine
    client ◄─ reply pieces ◄─ voice ◄─ reply ◄──── deltas, held until EOU ────┘

The shell around it (app/live.py in real time, app/virtual.py on a simulated clock) calls the `on_…`
methods, one at a time, with the session's time; whatever the session asks of a worker it asks through
a port that only enqueues, and the answer comes back through another `on_…` call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from app import messages as m
from app.conversation import Conversation
from app.prompt_spec import PromptSpec
from app.errors import ItemNotFound, SessionError
from app.reply import HeldPiece, Reply, Voice
from app.timeline import Prices, Timeline
from app.turn import (
    Act,
    ReplyBegan,
    ReplyOver,
    SpeechBegan,
    SpeechHeld,
    TurnMachine,
    UtteranceOver,
)
from asr import events as heard
from asr.listener import Listener
from asr.settings import ListenerSettings
from llm_engine import events as thought
from llm_engine.prompt import Snapshot

T = TypeVar("T")

INTERRUPT_MS = 180  # the caller must have spoken this long before a reply is cut: blips do not count
MAX_QUEUED_TURNS = 16  # utterances waiting for the running reply; the oldest waiting one is dropped
MAX_TRACKED_REVISIONS = 64


class Ears(Protocol):
    """The recogniser's worker: only enqueues; results come back through `Session.on_heard`."""

    def submit(self, request: heard.AsrRequest) -> None: ...


class Mind(Protocol):
    """The reply engine (`llm_engine.engine.Engine`, or another of the same face): all calls only enqueue."""

    def open(self, config: thought.SessionConfig, on_event: thought.OnEvent) -> str: ...

    def update(self, session_id: str, snapshot: Snapshot) -> None: ...

    def commit(self, session_id: str, snapshot: Snapshot) -> int: ...

    def cancel(self, session_id: str) -> None: ...

    def truncate(self, session_id: str, turn: int, num_reply_tokens: int) -> None: ...

    def close(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What one session may be asked to do differently. Frozen; `SettingsChanged` makes a new one."""

    output_audio: bool = True
    interrupt_response: bool = True
    create_response: bool = True
    speak_ahead: bool = True  # synthesise the draft's first piece before EOU
    engine: thought.SessionConfig = field(default_factory=thought.SessionConfig)
    prices: Prices = field(default_factory=Prices)


@dataclass(slots=True)
class _Turn:
    """The caller's side of one turn, from its first word (or key) to its reply's end."""

    item_id: str
    timeline: Timeline
    text: str = ""  # as shown
    prompt_text: str = ""  # as the model reads it


class Session:
    """See the module's head. Not safe for concurrent calls: its shell owns it."""

    def __init__(
        self,
        session_id: str,
        *,
        settings: SessionSettings,
        conversation: Conversation,
        listener: Listener,
        ears: Ears,
        engine: Mind,
        voice: Voice,
        sample_rate_hz: int,
        emit: Callable[[m.ServerEvent], None],
        on_thought: thought.OnEvent,
    ) -> None:
        self.session_id = session_id
        self._settings = settings
        self._conversation = conversation
        self._listener = listener
        self._ears = ears
        self._engine = engine
        self._voice = voice
        self._sample_rate_hz = sample_rate_hz
        self._emit = emit
        self._on_thought = on_thought
        self._engine_id = engine.open(settings.engine, on_thought)
        self._turns = TurnMachine()
        self._held = HeldPiece(voice, session_id)
        self._num_items = 0
        self._utterance: _Turn | None = None  # the open one
        self._queued: deque[_Turn] = deque()
        self._turn: _Turn | None = None  # the one being replied to
        self._reply: Reply | None = None
        self._last_reply: Reply | None = None  # finished; may still be playing
        self._cut: Reply | None = None  # the one stopped last; the client may say what it played of it
        self._unmeasured: dict[int, tuple[_Turn, Reply]] = {}  # stopped; the engine's account is to come
        self._speaking_since_s: float | None = None
        self._scored: dict[int, tuple[int, int]] = {}  # snapshot revision -> (utterance, transcript's)
        self._drafted_text: tuple[str, bool] | None = None

    # ---- what the client does

    def on_command(self, command: m.ClientCommand, now_s: float) -> None:
        """Carry out one command. What cannot be done is reported to the client; the session goes on."""
        try:
            self._do(command, now_s)
        except SessionError as error:
            self._emit(m.ErrorReported(error.code, str(error)))

    def _do(self, command: m.ClientCommand, now_s: float) -> None:
        match command:
            case m.AudioReceived(samples=samples):
                self._take(self._listener.push(samples), now_s)
                self._watch_overlap(now_s)
            case m.AudioCommitted():
                self._take(self._listener.commit(), now_s)
            case m.AudioCleared():
                self._take(self._listener.reset(), now_s)
            case m.TextTyped(text=text, final=final):
                self._on_typed(text, final, now_s)
            case m.MessageAdded(item_id=item_id, role=role, text=text):
                self._conversation.add(item_id, role, text)
            case m.MessageDeleted(item_id=item_id):
                self._conversation.delete(item_id)
            case m.ReplyRequested():
                self._on_reply_requested(now_s)
            case m.ReplyCancelled():
                self._stop_reply("cancelled", now_s)
            case m.ReplyTruncated(item_id=item_id, heard_ms=heard_ms):
                self._cut_history(item_id, heard_ms, now_s)
            case m.PlaybackReported(reply_id=reply_id, heard_ms=heard_ms):
                self._on_playback(reply_id, heard_ms, now_s)
            case m.SettingsChanged():
                self._change_settings(command)

    def on_heard(self, result: heard.AsrResult, now_s: float) -> None:
        """A result of the recogniser's worker."""
        self._take(self._listener.on_result(result), now_s)

    def on_spoken(self, key: str, samples: np.ndarray | None, is_last: bool, now_s: float) -> None:
        """A chunk [N] float32 of a piece from the voice; None with `is_last` only ends the piece."""
        held = self._held.piece
        if held is not None and held.key == key:
            held.add(samples, is_last, now_s)
        elif self._reply is not None and self._reply.on_chunk(key, samples, is_last, now_s):
            self._send_audio(now_s)

    def on_engine_event(self, event: thought.EngineEvent, now_s: float) -> None:
        """An event of the engine for this session."""
        match event:
            case thought.SnapshotScored():
                self._on_scored(event, now_s)
            case thought.DraftChanged():
                self._on_draft(event)
            case thought.ReplyDelta():
                self._on_delta(event, now_s)
            case thought.ReplyDone():
                self._on_generated(event, now_s)
            case thought.SessionFailed(code=code, message=message):
                self._emit(m.ErrorReported(code, message))

    def close(self) -> None:
        """Give back what the session holds in the engine and the voice."""
        if self._reply is not None:
            self._reply.stop()
        self._held.drop()
        self._engine.close(self._engine_id)

    # ---- listening

    def _take(self, events: list[heard.ListenerEvent], now_s: float) -> None:
        for event in events:
            match event:
                case heard.DecodeRequest() | heard.TurnCheckRequest():
                    self._ears.submit(event)
                case heard.SpeechStarted():
                    self._on_speech_started(event, now_s)
                case heard.SpeechPaused():
                    self._speaking_since_s = None
                case heard.SpeechResumed():
                    self._speaking_since_s = event.at_s
                case heard.Transcript():
                    self._on_transcript(event)
                case heard.UtteranceEnded():
                    self._on_utterance_ended(event, now_s)
                case heard.AsrFailed(message=message):
                    self._emit(m.ErrorReported("recognition_failed", message))

    def _on_speech_started(self, event: heard.SpeechStarted, now_s: float) -> None:
        self._utterance = _Turn(self._new_item_id(), Timeline())
        self._drafted_text = None
        self._speaking_since_s = event.at_s
        self._emit(m.UserSpeechStarted(self._utterance.item_id, round(event.at_s * 1000)))
        self._take_acts(SpeechBegan(), now_s)

    def _on_transcript(self, transcript: heard.Transcript) -> None:
        if self._utterance is None:
            return
        self._utterance.text = transcript.text
        self._utterance.prompt_text = transcript.prompt_text
        self._emit(
            m.TranscriptChanged(
                self._utterance.item_id, transcript.revision, transcript.stable, transcript.tentative
            )
        )
        self._update_prompt(transcript)

    def _update_prompt(self, transcript: heard.Transcript) -> None:
        """Hand the engine the newest words, unless they are what it has already."""
        wanted = (transcript.prompt_text, transcript.at_pause)
        if not self._may_draft or not transcript.prompt_text or self._drafted_text == wanted:
            return
        self._drafted_text = wanted
        snapshot = self._conversation.snapshot(
            transcript.prompt_text, at_pause=transcript.at_pause
        )
        self._scored[snapshot.revision] = (transcript.utterance, transcript.revision)
        while len(self._scored) > MAX_TRACKED_REVISIONS:
            del self._scored[next(iter(self._scored))]
        self._engine.update(self._engine_id, snapshot)

    @property
    def _may_draft(self) -> bool:
        """The engine is free for the next turn: no reply is being made, no earlier turn waits."""
        return not self._queued and (self._reply is None or self._reply.is_generated)

    def _on_scored(self, event: thought.SnapshotScored, now_s: float) -> None:
        source = self._scored.get(event.revision)
        if source is not None:
            utterance, revision = source
            self._take(
                self._listener.on_end_probability(utterance, revision, event.end_probability), now_s
            )

    def _on_utterance_ended(self, event: heard.UtteranceEnded, now_s: float) -> None:
        turn = self._utterance
        if turn is None:
            return
        turn.timeline.speech_end_s = event.speech_end_s
        turn.timeline.eou_s = now_s
        transcript = event.transcript
        turn.text = transcript.text if transcript else ""
        turn.prompt_text = transcript.prompt_text if transcript else ""
        self._speaking_since_s = None
        self._emit(
            m.UserSpeechStopped(
                turn.item_id, round(event.at_s * 1000), round(event.speech_end_s * 1000)
            )
        )
        self._emit(m.TranscriptFinal(turn.item_id, turn.text))
        self._take_acts(
            UtteranceOver(bool(turn.prompt_text), self._settings.interrupt_response), now_s
        )
        self._utterance = None

    def _watch_overlap(self, now_s: float) -> None:
        """Audio time has passed: has the caller spoken long enough to cut in, has playback ended?"""
        since_s = self._speaking_since_s
        if (
            since_s is not None
            and self._turns.is_replying
            and (self._listener.now_s - since_s) * 1000 >= INTERRUPT_MS
        ):
            self._speaking_since_s = None
            self._take_acts(SpeechHeld(self._settings.interrupt_response), now_s)
        self._end_reply_once_heard(now_s)

    # ---- typing and requests

    def _on_typed(self, text: str, final: bool, now_s: float) -> None:
        if self._utterance is not None:
            return  # the caller is speaking: the voice has the turn
        if not final:
            if self._may_draft and text.strip():
                self._engine.update(self._engine_id, self._conversation.snapshot(text.strip()))
            return
        if not text.strip():
            return
        timeline = Timeline(speech_end_s=now_s, eou_s=now_s)
        turn = _Turn(self._new_item_id(), timeline, text.strip(), text.strip())
        self._emit(m.TranscriptFinal(turn.item_id, turn.text))
        self._begin_unspoken(turn, now_s)

    def _on_reply_requested(self, now_s: float) -> None:
        timeline = Timeline(eou_s=now_s)
        self._begin_unspoken(_Turn("", timeline), now_s)

    def _begin_unspoken(self, turn: _Turn, now_s: float) -> None:
        """Start a turn that no utterance of the caller began."""
        if self._turns.is_replying:
            if not self._settings.interrupt_response:
                self._queue(turn)
                return
            self._stop_reply("interrupted", now_s)
        self._turns.handle(ReplyBegan())
        self._commit(turn, now_s)

    # ---- turns

    def _take_acts(
        self, event: SpeechBegan | SpeechHeld | UtteranceOver | ReplyOver, now_s: float
    ) -> None:
        for act in self._turns.handle(event):
            match act:
                case Act.COMMIT:
                    assert self._utterance is not None
                    self._commit(self._utterance, now_s)
                case Act.QUEUE:
                    assert self._utterance is not None
                    self._queue(self._utterance)
                case Act.COMMIT_QUEUED:
                    self._commit(self._queued.popleft(), now_s)
                case Act.INTERRUPT:
                    self._interrupt(now_s)
                case Act.DROP:
                    self._drop_draft()

    def _queue(self, turn: _Turn) -> None:
        if len(self._queued) == MAX_QUEUED_TURNS:
            dropped = self._queued.popleft()
            self._emit(m.ErrorReported("turn_dropped", f"too many turns wait: {dropped.item_id}"))
        self._queued.append(turn)

    def _drop_draft(self) -> None:
        self._utterance = None
        self._held.drop()

    def _commit(self, turn: _Turn, now_s: float) -> None:
        """The caller's turn is over and its words are final: deliver the reply."""
        if turn.prompt_text and not self._settings.create_response:
            self._conversation.add(turn.item_id, "user", turn.prompt_text)
            self._drop_draft()
            self._take_acts(ReplyOver(len(self._queued)), now_s)
            return
        snapshot = self._conversation.snapshot(turn.prompt_text or None, at_pause=True)
        if turn.prompt_text:
            self._conversation.add(turn.item_id, "user", turn.prompt_text)
        self._last_reply = None
        self._turn = turn
        engine_turn = self._engine.commit(self._engine_id, snapshot)
        self._reply = Reply(
            f"resp_{self.session_id}_{engine_turn}",
            self._new_item_id(),
            engine_turn,
            self._voice,
            self._held,
            speaks=self._settings.output_audio,
            sample_rate_hz=self._sample_rate_hz,
        )
        self._emit(
            m.ReplyStarted(self._reply.reply_id, self._reply.item_id, turn.item_id or None)
        )

    # ---- replying

    def _on_draft(self, event: thought.DraftChanged) -> None:
        if self._utterance is not None:
            self._emit(m.DraftShown(self._utterance.item_id, event.revision, event.text))
        if self._may_draft and self._settings.output_audio and self._settings.speak_ahead:
            self._held.on_draft(event.text, is_complete=event.is_complete)

    def _on_delta(self, event: thought.ReplyDelta, now_s: float) -> None:
        reply, turn = self._reply, self._turn
        if reply is None or turn is None or event.turn != reply.turn:
            return
        turn.timeline.on_delta(len(event.token_ids), event.decided_at_s, now_s)
        if event.text:
            self._emit(m.ReplyText(reply.reply_id, reply.item_id, event.text))
        reply.on_delta(event.text, len(event.token_ids))
        self._send_audio(now_s)

    def _on_generated(self, event: thought.ReplyDone, now_s: float) -> None:
        if event.turn in self._unmeasured:
            stopped_turn, stopped = self._unmeasured.pop(event.turn)
            stopped.stats = event.stats
            self._measure(stopped_turn, stopped)
            return
        reply = self._reply
        if reply is None or event.turn != reply.turn:
            return
        if event.error is not None:
            self._emit(m.ErrorReported("reply_failed", event.error))
        reply.on_generated(event.reason, event.stats)
        self._send_audio(now_s)

    def _send_audio(self, now_s: float) -> None:
        reply, turn = self._reply, self._turn
        if reply is None or turn is None:
            return
        for samples, text in reply.audio_to_send():
            if turn.timeline.first_audio_sent_s is None:
                turn.timeline.first_audio_ready_s = reply.first_audio_ready_s
                turn.timeline.first_audio_sent_s = now_s
                reply.started_playing_s = now_s
            self._emit(
                m.ReplyAudio(reply.reply_id, reply.item_id, samples, self._sample_rate_hz, text)
            )
        if reply.is_finished:
            self._finish_reply(now_s)

    def _finish_reply(self, now_s: float) -> None:
        """All of the reply's text and audio is out. It may still be playing."""
        reply = self._reply
        assert reply is not None
        reasons = {"stop": "completed", "length": "length", "error": "failed"}
        self._close_reply(reply, reasons.get(reply.reason, reply.reason))
        self._last_reply = reply
        self._reply = None
        self._end_reply_once_heard(now_s)

    def _end_reply_once_heard(self, now_s: float) -> None:
        reply = self._last_reply
        if reply is None or (
            self._settings.interrupt_response and reply.heard_ms(now_s) < reply.sent_ms
        ):
            return
        self._last_reply = None
        self._reply_over(now_s)

    def _reply_over(self, now_s: float) -> None:
        self._conversation.begin_turn()
        self._take_acts(ReplyOver(len(self._queued)), now_s)

    def _close_reply(self, reply: Reply, reason: str) -> None:
        """Put the reply into the history and report its end, once."""
        turn = self._turn
        assert turn is not None
        if reply.text.strip():
            self._conversation.add(reply.item_id, "assistant", reply.text.strip())
        stats = reply.stats
        self._emit(
            m.ReplyFinished(
                reply.reply_id,
                reply.item_id,
                reason,  # type: ignore[arg-type]
                reply.text.strip(),
                {
                    "prompt_tokens": stats.prompt_tokens,
                    "cached_tokens": stats.cached_prompt_tokens,
                    "reply_tokens": stats.reply_tokens,
                },
            )
        )
        if reply.is_accounted:
            self._measure(turn, reply)
        else:
            self._unmeasured[reply.turn] = (turn, reply)
        self._turn = None

    def _measure(self, turn: _Turn, reply: Reply) -> None:
        metrics = {"transcript": turn.text, "reply": reply.text.strip()}
        metrics |= turn.timeline.metrics(reply.stats, self._settings.prices)
        self._emit(m.TurnMeasured(turn.item_id, metrics))

    # ---- interruption

    def _interrupt(self, now_s: float) -> None:
        """The caller cut in: stop the reply, keep in the history what was heard of it."""
        self._stop_reply("interrupted", now_s, ends_turn=False)
        self._conversation.begin_turn()

    def _stop_reply(
        self, reason: str, now_s: float, *, heard_ms: int | None = None, ends_turn: bool = True
    ) -> None:
        reply = self._reply or self._last_reply
        if reply is None:
            return
        heard_ms = reply.heard_ms(now_s) if heard_ms is None else heard_ms
        if self._reply is not None:
            if not reply.is_generated:
                self._engine.cancel(self._engine_id)
            reply.stop()
            self._close_reply(reply, reason)
            self._reply = None
        self._last_reply = None
        self._emit(m.AudioFlushed(reply.reply_id, reply.item_id))
        self._keep_heard(reply, heard_ms)
        if ends_turn:
            self._reply_over(now_s)

    def _keep_heard(self, reply: Reply, heard_ms: int) -> None:
        if not self._settings.output_audio or not self._conversation.has(reply.item_id):
            return  # text was read as it came
        text, num_tokens = reply.heard_text(heard_ms)
        if text != self._conversation.text_of(reply.item_id):
            self._conversation.set_text(reply.item_id, text)
            self._engine.truncate(self._engine_id, reply.turn, num_tokens)
            self._emit(m.ReplyCut(reply.item_id, heard_ms))
        self._cut = reply

    def _cut_history(self, item_id: str, heard_ms: int, now_s: float) -> None:
        """The client says how much of a reply it played; one that still plays is stopped."""
        for reply in (self._reply, self._last_reply):
            if reply is not None and reply.item_id == item_id:
                self._stop_reply("interrupted", now_s, heard_ms=heard_ms)
                return
        if self._cut is not None and self._cut.item_id == item_id:
            self._keep_heard(self._cut, heard_ms)
        elif not self._conversation.has(item_id):
            raise ItemNotFound(item_id)

    def _on_playback(self, reply_id: str, heard_ms: int, now_s: float) -> None:
        """A playback mark moves the playing clock to what the client reports."""
        for reply in (self._reply, self._last_reply):
            if reply is not None and reply.reply_id == reply_id:
                reply.started_playing_s = now_s - heard_ms / 1000
        self._end_reply_once_heard(now_s)

    # ---- settings

    def _change_settings(self, change: m.SettingsChanged) -> None:
        if change.instructions is not None:
            spec = self._conversation.spec
            self._conversation.set_spec(replace(spec, system=change.instructions))
        settings = self._settings
        engine = settings.engine
        sampling = engine.sampling
        sampling = replace(
            sampling,
            temperature=_or(change.temperature, sampling.temperature),
            top_p=_or(change.top_p, sampling.top_p),
            max_tokens=_or(change.max_reply_tokens, sampling.max_tokens),
        )
        changed = replace(engine, sampling=sampling, seed=_or(change.seed, engine.seed))
        self._settings = replace(
            settings,
            engine=changed,
            output_audio=_or(change.output_audio, settings.output_audio),
            interrupt_response=_or(change.interrupt_response, settings.interrupt_response),
            create_response=_or(change.create_response, settings.create_response),
        )
        if changed != engine:  # sampling belongs to a sequence: a new one takes over between turns
            self._stop_reply("cancelled", self._listener.now_s)
            self._engine.close(self._engine_id)
            self._engine_id = self._engine.open(changed, self._on_thought)
        self._listener.configure(_with_changes(self._listener.settings, change))

    def _new_item_id(self) -> str:
        self._num_items += 1
        return f"item_{self.session_id}_{self._num_items}"


def _with_changes(settings: ListenerSettings, change: m.SettingsChanged) -> ListenerSettings:
    return replace(
        settings,
        turn_detection=_or(change.turn_detection, settings.turn_detection),
        silence_ms=_or(change.silence_ms, settings.silence_ms),
        vad_threshold=_or(change.vad_threshold, settings.vad_threshold),
        eagerness=_or(change.eagerness, settings.eagerness),
        language=_or(change.language, settings.language),
        hot_words=_or(change.hot_words, settings.hot_words),
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
