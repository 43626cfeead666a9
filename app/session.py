"""One conversation, without sockets, threads or clocks: the main path.

    caller's audio ─► listener ─transcripts─► conversation ─snapshots─► engine
    client ◄─ pieces of audio ◄─ voice ◄─ delivery ◄─ deltas, held until EOU ──┘

The shell around it (app/live.py in real time, app/virtual.py on a simulated clock) calls the `on_…`
methods, one at a time, with the session's time; whatever the session asks of a worker it asks
through a port that only enqueues, and the answer comes back through another `on_…` call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from app import messages as m
from app.conversation import Conversation
from app.delivery import Delivery, Turn
from app.errors import PromptRejected, SessionError, SettingsRefused
from app.ports import Ears, Mind, Voice
from app.session_settings import SessionSettings, changed_listener
from app.timeline import Timeline
from app.turn import (
    Act,
    ReplyBegan,
    ReplyOver,
    SpeechBegan,
    SpeechHeld,
    TurnEvent,
    TurnMachine,
    UtteranceOver,
)
from asr import events as heard
from asr.listener import Listener
from llm_engine import events as thought
from llm_engine.errors import EngineError

INTERRUPT_MS = (
    180  # the caller must have spoken this long before a reply is cut: blips do not count
)
MAX_QUEUED_TURNS = 16  # utterances waiting for the running reply; the oldest waiting one is dropped
MAX_TRACKED_REVISIONS = 64


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
        self._emit = emit
        self._on_thought = on_thought
        self._turns = TurnMachine()
        self._delivery = Delivery(
            session_id,
            settings,
            conversation=conversation,
            engine=engine,
            voice=voice,
            sample_rate_hz=sample_rate_hz,
            emit=emit,
            on_over=self._on_reply_over,
        )
        self._num_items = 0
        self._utterance: Turn | None = None  # the open one
        self._queued: deque[Turn] = deque()
        self._speaking_since_s: float | None = None
        self._scored: dict[
            int, tuple[int, int]
        ] = {}  # snapshot revision -> (utterance, transcript's)
        self._drafted_on: tuple[str, bool, str] | None = None
        self._delivery.engine_id = engine.open(settings.engine, on_thought)
        self._warm_prompt()

    @property
    def _engine_id(self) -> str:
        return self._delivery.engine_id

    def move_clock(self, by_s: float) -> None:
        """`now_s` will be that much larger: audio time begins, and the shell's clock with it."""
        self._delivery.move_clock(by_s)
        for turn in self._queued:
            turn.timeline.move_clock(by_s)

    # ---- what the client does

    def on_command(self, command: m.ClientCommand, now_s: float) -> None:
        """Carry out one command; what cannot be done is reported and the session goes on."""
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
                self._on_audio_committed(now_s)
            case m.AudioCleared():
                self._take(self._listener.reset(), now_s)
            case m.TextTyped(text=text, final=final):
                self._on_typed(text.strip(), final, now_s)
            case m.MessageAdded(item_id=item_id, role=role, text=text):
                self._conversation.restore(item_id, role, text)
            case m.MessageDeleted(item_id=item_id):
                self._conversation.delete(item_id)
            case m.ReplyRequested():
                self._on_reply_requested(command, now_s)
            case m.ReplyCancelled():
                self._stop_reply(now_s)
            case m.ReplyTruncated(item_id=item_id, heard_ms=heard_ms):
                if self._delivery.truncate(item_id, heard_ms, now_s):
                    self._on_reply_over(now_s)
            case m.PlaybackReported(reply_id=reply_id, heard_ms=heard_ms):
                self._delivery.on_playback(reply_id, heard_ms, now_s)
            case m.SettingsChanged():
                self._change_settings(command, now_s)

    # ---- what the workers answer

    def on_heard(self, result: heard.AsrResult, now_s: float) -> None:
        """A result of the recogniser's worker."""
        self._take(self._listener.on_result(result), now_s)

    def on_spoken(self, key: str, samples: np.ndarray | None, is_last: bool, now_s: float) -> None:
        """A chunk [N] float32 from the voice; None with `is_last` only ends the piece."""
        self._delivery.on_spoken(key, samples, is_last, now_s)

    def on_unspoken(self, key: str, why: str, now_s: float) -> None:
        """The voice refused a piece or failed at it; ends the piece."""
        self._delivery.on_unspoken(key, why, now_s)

    def on_engine_event(self, event: thought.EngineEvent, now_s: float) -> None:
        """An event of the engine for this session."""
        match event:
            case thought.SnapshotScored():
                self._on_scored(event, now_s)
            case thought.DraftChanged():
                self._on_draft(event)
            case thought.ReplyDelta():
                self._delivery.on_delta(event, now_s)
            case thought.ReplyDone():
                self._delivery.on_done(event, now_s)
            case thought.SessionFailed(code=code, message=message):
                self._emit(m.ErrorReported(code, message))

    def close(self) -> None:
        """Give back what the session holds in the engine and the voice."""
        self._delivery.close()
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
        self._utterance = Turn(self._new_item_id(), Timeline())
        self._drafted_on = None
        self._speaking_since_s = event.at_s
        self._emit(m.UserSpeechStarted(self._utterance.item_id, round(event.at_s * 1000)))
        self._take_acts(SpeechBegan(), now_s)

    def _on_transcript(self, transcript: heard.Transcript) -> None:
        if self._utterance is None:
            return
        self._emit(
            m.TranscriptChanged(
                self._utterance.item_id,
                transcript.revision,
                transcript.stable,
                transcript.tentative,
            )
        )
        self._update_prompt(transcript)

    def _update_prompt(self, transcript: heard.Transcript) -> None:
        """Hand the engine the newest words, unless they are what it has already."""
        is_awaiting_stable = self._settings.engine.trigger is thought.SpeculationTrigger.STABLE
        stable = transcript.stable if is_awaiting_stable else ""  # else it changes nothing
        wanted = (transcript.prompt_text, transcript.at_pause, stable)
        if not self._may_draft or not transcript.prompt_text or self._drafted_on == wanted:
            return
        self._drafted_on = wanted
        revision = self._speculate(
            transcript.prompt_text, stable=transcript.stable, at_pause=transcript.at_pause
        )
        if revision is None:
            return
        self._scored[revision] = (transcript.utterance, transcript.revision)
        while len(self._scored) > MAX_TRACKED_REVISIONS:
            del self._scored[next(iter(self._scored))]

    def _speculate(self, words: str, *, stable: str = "", at_pause: bool = False) -> int | None:
        """The snapshot's revision. What cannot be computed ahead (None) is reported when it is
        asked for."""
        with suppress(EngineError, PromptRejected):
            snapshot = self._conversation.snapshot(words, stable=stable, at_pause=at_pause)
            self._engine.update(self._engine_id, snapshot)
            return snapshot.revision
        return None

    @property
    def _may_draft(self) -> bool:
        """The engine is free for the next turn: no reply is being made, no earlier turn waits."""
        return not self._queued and not self._delivery.is_generating

    def _warm_prompt(self) -> None:
        """Let the engine compute what is known of the next prompt while nobody waits."""
        if self._settings.compute_ahead and self._may_draft:
            self._speculate("")

    def _on_scored(self, event: thought.SnapshotScored, now_s: float) -> None:
        source = self._scored.get(event.revision)
        if source is not None:
            utterance, revision = source
            self._take(
                self._listener.on_end_probability(utterance, revision, event.end_probability), now_s
            )

    def _on_draft(self, event: thought.DraftChanged) -> None:
        if self._may_draft:
            # a typed message has no item before it is sent
            item_id = "" if self._utterance is None else self._utterance.item_id
            self._emit(m.DraftShown(item_id, event.revision, event.text))
        if self._may_draft and self._settings.output_audio and self._settings.speak_ahead:
            self._delivery.held.on_draft(event.text, is_complete=event.is_complete)

    def _on_utterance_ended(self, event: heard.UtteranceEnded, now_s: float) -> None:
        turn = self._utterance
        if turn is None:
            return
        turn.timeline.speech_end_s = event.speech_end_s
        turn.timeline.eou_s = now_s
        final = m.TranscriptFinal(turn.item_id, "")
        if event.transcript is not None:
            turn.text, turn.prompt_text = event.transcript.text, event.transcript.prompt_text
            words, language = event.transcript.words, event.transcript.language
            final = m.TranscriptFinal(turn.item_id, turn.text, words, language)
        self._speaking_since_s = None
        self._emit(
            m.UserSpeechStopped(
                turn.item_id, round(event.at_s * 1000), round(event.speech_end_s * 1000)
            )
        )
        self._emit(final)
        self._take_acts(
            UtteranceOver(bool(turn.prompt_text), self._settings.interrupt_response), now_s
        )
        self._utterance = None

    def _watch_overlap(self, now_s: float) -> None:
        """Has the caller spoken long enough to cut in, has playback ended?"""
        since_s = self._speaking_since_s
        if (
            since_s is not None
            and self._turns.is_replying
            and (self._listener.now_s - since_s) * 1000 >= INTERRUPT_MS
        ):
            self._speaking_since_s = None
            self._take_acts(SpeechHeld(self._settings.interrupt_response), now_s)
        self._delivery.check_heard(now_s)

    def _on_audio_committed(self, now_s: float) -> None:
        """The client ended the utterance. Where none is open, it is told that nothing was said."""
        was_open = self._utterance is not None
        self._take(self._listener.commit(), now_s)
        if not was_open and self._utterance is None:
            self._emit(m.TranscriptFinal(self._new_item_id(), ""))

    # ---- turns

    def _take_acts(self, event: TurnEvent, now_s: float) -> None:
        for act in self._turns.handle(event):
            match act:
                case Act.COMMIT:
                    assert self._utterance is not None
                    self._queue(self._utterance)  # behind what waited before interruptions were on
                    self._commit(self._queued.popleft(), now_s)
                case Act.QUEUE:
                    assert self._utterance is not None
                    self._queue(self._utterance)
                case Act.COMMIT_QUEUED:
                    self._commit(self._queued.popleft(), now_s)
                case Act.INTERRUPT:
                    self._delivery.stop("interrupted", now_s)
                    self._conversation.begin_turn()
                case Act.DROP:
                    self._delivery.held.drop()
                    if self._queued and not self._turns.is_replying:  # an interruption for nothing
                        self._turns.handle(ReplyBegan())
                        self._commit(self._queued.popleft(), now_s)

    def _commit(self, turn: Turn, now_s: float) -> None:
        """The caller's turn is over and its words are final: deliver the reply."""
        if turn.prompt_text and not self._settings.create_response:
            self._conversation.add(turn.item_id, "user", turn.prompt_text)
            self._delivery.held.drop()
            self._on_reply_over(now_s)
            return
        try:
            snapshot = self._conversation.snapshot(
                turn.prompt_text or None,
                at_pause=True,
                max_reply_tokens=turn.max_reply_tokens,
                system=turn.instructions,
            )
            if turn.prompt_text:
                self._conversation.add(turn.item_id, "user", turn.prompt_text)
            engine_turn = self._engine.commit(self._engine_id, snapshot)
        except (EngineError, PromptRejected) as error:  # e.g. the words alone are too long
            self._emit(m.ErrorReported("reply_failed", str(error)))
            self._on_reply_over(now_s)
            return
        self._delivery.begin(
            turn,
            engine_turn,
            self._new_item_id(),
            num_prompt_tokens=snapshot.num_tokens,
        )

    def _on_reply_over(self, now_s: float) -> None:
        self._conversation.begin_turn()
        self._take_acts(ReplyOver(len(self._queued)), now_s)
        if self._utterance is None:
            self._warm_prompt()

    def _stop_reply(self, now_s: float) -> None:
        if self._delivery.stop("cancelled", now_s):
            self._on_reply_over(now_s)

    def _queue(self, turn: Turn) -> None:
        if len(self._queued) == MAX_QUEUED_TURNS:
            dropped = self._queued.popleft()
            self._emit(m.ErrorReported("turn_dropped", f"too many turns wait: {dropped.item_id}"))
        self._queued.append(turn)

    # ---- typing and requests

    def _on_typed(self, text: str, final: bool, now_s: float) -> None:
        if self._utterance is not None or not text:
            return  # while the caller speaks, the voice has the turn
        if not final:
            if self._may_draft:
                self._speculate(text, stable=text)
            return
        turn = Turn(self._new_item_id(), Timeline(speech_end_s=now_s, eou_s=now_s), text, text)
        self._emit(m.TranscriptFinal(turn.item_id, turn.text))
        self._begin_unspoken(turn, now_s)

    def _on_reply_requested(self, request: m.ReplyRequested, now_s: float) -> None:
        if request.instructions is not None:
            spec = self._conversation.spec
            self._conversation.check_spec(replace(spec, system=request.instructions))
        turn = Turn(
            "",
            Timeline(eou_s=now_s),
            max_reply_tokens=request.max_tokens,
            instructions=request.instructions,
        )
        self._begin_unspoken(turn, now_s)

    def _begin_unspoken(self, turn: Turn, now_s: float) -> None:
        """Start a turn that no utterance of the caller began."""
        if self._turns.is_replying and self._settings.interrupt_response:
            self._stop_reply(now_s)
        if self._turns.is_replying:  # still, or again: to a turn that waited before this one
            self._queue(turn)
            return
        self._turns.handle(ReplyBegan())
        self._commit(turn, now_s)

    # ---- settings

    def _change_settings(self, change: m.SettingsChanged, now_s: float) -> None:
        """Raises PromptTooLarge, SettingsRefused; nothing has changed then."""
        spec, settings = self._conversation.spec, self._settings.changed(change)
        if change.instructions is not None:
            spec = replace(spec, system=change.instructions)
            self._conversation.check_spec(spec)
        closing_id = self._engine_id
        if settings.engine != self._settings.engine:  # sampling belongs to an engine session
            self._open_engine(settings)
        if spec != self._conversation.spec:
            self._conversation.set_spec(spec)
        self._settings = self._delivery.settings = settings
        self._listener.configure(changed_listener(self._listener.settings, change))
        if closing_id != self._engine_id:
            self._stop_reply(now_s)  # a turn that waited for it is committed to the new session
            self._engine.close(closing_id)
            self._drafted_on = None
        if self._utterance is None:
            self._warm_prompt()

    def _open_engine(self, settings: SessionSettings) -> None:
        try:
            self._delivery.engine_id = self._engine.open(settings.engine, self._on_thought)
        except EngineError as cause:
            raise SettingsRefused(str(cause)) from cause

    def _new_item_id(self) -> str:
        self._num_items += 1
        return f"item_{self.session_id}_{self._num_items}"
