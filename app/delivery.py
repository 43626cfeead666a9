"""The speaking half of a session: one reply at a time, from its commit to the last word heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app import messages as m
from app.conversation import Conversation
from app.errors import ItemNotFound
from app.ports import Mind, Voice
from app.reply import HeldPiece, Reply
from app.session_settings import SessionSettings
from app.timeline import Timeline
from llm_engine import events as thought

EndReason = Literal["completed", "length", "cancelled", "interrupted", "failed"]
END_REASONS: dict[str, EndReason] = {
    "stop": "completed",
    "length": "length",
    "cancelled": "cancelled",
    "error": "failed",
}


@dataclass(slots=True)
class Turn:
    """The caller's side of one turn, from its first word (or key) to its reply's end."""

    item_id: str
    timeline: Timeline
    text: str = ""  # as shown
    prompt_text: str = ""  # as the model reads it
    max_reply_tokens: int | None = None  # None: the session's
    instructions: str | None = None  # None: the session's


class Delivery:
    """Sends the running reply's text and audio on, and keeps the history true.

    `on_over` is called when a reply is over: generated, spoken and (where it may be interrupted)
    played, or cancelled.
    """

    def __init__(
        self,
        session_id: str,
        settings: SessionSettings,
        *,
        conversation: Conversation,
        engine: Mind,
        voice: Voice,
        sample_rate_hz: int,
        emit: Callable[[m.ServerEvent], None],
        on_over: Callable[[float], None],
    ) -> None:
        self.settings = settings
        self.engine_id = ""  # the session's engine session; earlier ones are closed
        self.held = HeldPiece(voice, session_id)
        self._session_id = session_id
        self._conversation = conversation
        self._engine = engine
        self._voice = voice
        self._sample_rate_hz = sample_rate_hz
        self._emit = emit
        self._on_over = on_over
        self._num_replies = 0
        self._turn: Turn | None = None  # the one being replied to
        self._reply: Reply | None = None
        self._playing: Reply | None = None  # all of it is sent; the client may still play it
        self._cut: Reply | None = None  # stopped last; the client may say what it played of it
        # stopped replies, by engine session and turn, whose account the engine has yet to give
        self._unmeasured: dict[tuple[str, int], tuple[Turn, Reply]] = {}

    @property
    def is_generating(self) -> bool:
        return self._reply is not None and not self._reply.is_generated

    def begin(
        self,
        turn: Turn,
        engine_turn: int,
        item_id: str,
        *,
        num_prompt_tokens: int,
    ) -> None:
        """The engine was asked for the reply to `turn`."""
        self._num_replies += 1
        self._playing = None
        self._turn = turn
        self._reply = Reply(
            f"resp_{self._session_id}_{self._num_replies}",
            item_id,
            (self.engine_id, engine_turn),
            self._voice,
            self.held,
            speaks=self.settings.output_audio,
            sample_rate_hz=self._sample_rate_hz,
            num_prompt_tokens=num_prompt_tokens,
        )
        self._emit(m.ReplyStarted(self._reply.reply_id, item_id, turn.item_id or None))

    def move_clock(self, by_s: float) -> None:
        """The session's clock was set anew: what plays goes on playing."""
        replies = (self._reply, self._playing, self._cut)
        for reply in {id(reply): reply for reply in replies if reply is not None}.values():
            reply.move_clock(by_s)
        turns = [turn for turn, _ in self._unmeasured.values()]
        for turn in turns if self._turn is None else [*turns, self._turn]:
            turn.timeline.move_clock(by_s)

    # ---- what the workers say

    def on_delta(self, event: thought.ReplyDelta, now_s: float) -> None:
        reply, turn = self._reply, self._turn
        if reply is None or turn is None or reply.source != (event.session_id, event.turn):
            return
        turn.timeline.on_delta(len(event.token_ids), event.decided_at_s, now_s)
        if event.text:
            self._emit(m.ReplyText(reply.reply_id, reply.item_id, event.text))
        reply.on_delta(event.text, len(event.token_ids))
        if reply.awaits_first_audio:  # the caller does: what comes after it must not slow it down
            self._engine.hold_reply(event.session_id)
        self._send_audio(now_s)

    def on_done(self, event: thought.ReplyDone, now_s: float) -> None:
        source = (event.session_id, event.turn)
        if source in self._unmeasured:
            turn, stopped = self._unmeasured.pop(source)
            stopped.stats = event.stats
            self._measure(turn, stopped)
            return
        reply = self._reply
        if reply is None or reply.source != source:
            return
        if event.error is not None:
            self._emit(m.ErrorReported("reply_failed", event.error))
        reply.on_generated(event.reason, event.stats)
        self._send_audio(now_s)

    def on_spoken(self, key: str, samples: np.ndarray | None, is_last: bool, now_s: float) -> None:
        """A chunk [N] float32 of a piece; None with `is_last` only ends the piece."""
        held = self.held.piece
        if held is not None and held.key == key:
            held.add(samples, is_last, now_s)
        elif self._reply is not None and self._reply.on_chunk(key, samples, is_last, now_s):
            if not self._reply.awaits_first_audio:
                self._engine.release_reply(self._reply.source[0])
            self._send_audio(now_s)

    def on_unspoken(self, key: str, why: str, now_s: float) -> None:
        """The voice has no more of a piece than it gave. The client is told once per reply."""
        reply = self._reply
        if reply is not None and reply.has_own(key) and not reply.is_partly_mute:
            reply.is_partly_mute = True
            self._emit(m.ErrorReported("speech_failed", why))
        self.on_spoken(key, None, True, now_s)

    def _send_audio(self, now_s: float) -> None:
        reply, turn = self._reply, self._turn
        if reply is None or turn is None:
            return
        for samples, text in reply.audio_to_send():
            if turn.timeline.first_audio_sent_s is None:
                turn.timeline.on_first_audio(reply.first_audio_ready_s, now_s)
                reply.started_playing_s = now_s
            self._emit(
                m.ReplyAudio(reply.reply_id, reply.item_id, samples, self._sample_rate_hz, text)
            )
        if reply.is_finished:
            self._close(reply, END_REASONS[reply.reason])
            self._playing = reply
            self.check_heard(now_s)

    # ---- the reply's end

    def check_heard(self, now_s: float) -> None:
        """Time has passed: a reply that was sent whole is over once it has been played.

        Where replies are not interrupted nobody waits for that.
        """
        reply = self._playing
        if reply is None or (
            self.settings.interrupt_response and reply.heard_ms(now_s) < reply.sent_ms
        ):
            return
        self._playing = None
        self._on_over(now_s)

    def _close(self, reply: Reply, reason: EndReason) -> None:
        """Put the reply into the history and report its end, once."""
        turn = self._turn
        assert turn is not None
        self._reply = self._turn = None
        text = reply.text.strip()
        if text:
            self._conversation.add(reply.item_id, "assistant", text)
        self._emit(m.ReplyFinished(reply.reply_id, reply.item_id, reason, text, reply.usage))
        if reply.is_accounted:
            self._measure(turn, reply)
        else:
            self._unmeasured[reply.source] = (turn, reply)

    def _measure(self, turn: Turn, reply: Reply) -> None:
        metrics = {"transcript": turn.text, "reply": reply.text.strip()}
        metrics |= turn.timeline.metrics(reply.stats, self.settings.prices)
        self._emit(m.TurnMeasured(turn.item_id, metrics))

    # ---- stopping

    def stop(self, reason: EndReason, now_s: float, *, heard_ms: int | None = None) -> bool:
        """Cut the reply off; the history keeps what was heard of it. False: there is none."""
        reply = self._reply or self._playing
        if reply is None:
            return False
        heard_ms = reply.heard_ms(now_s) if heard_ms is None else heard_ms
        if self._reply is not None:
            if not reply.is_generated:
                self._engine.cancel(reply.source[0])
            reply.stop()
            self._close(reply, reason)
        self._playing = None
        self._emit(m.AudioFlushed(reply.reply_id, reply.item_id))
        self._keep_heard(reply, heard_ms)
        return True

    def truncate(self, item_id: str, heard_ms: int, now_s: float) -> bool:
        """The client says how much of a reply it played. True: this stopped a running reply."""
        reply = self._reply or self._playing
        if reply is not None and reply.item_id == item_id:
            return self.stop("interrupted", now_s, heard_ms=heard_ms)
        if self._cut is not None and self._cut.item_id == item_id:
            self._keep_heard(self._cut, heard_ms)
        elif not self._conversation.has(item_id):
            raise ItemNotFound(item_id)
        return False

    def on_playback(self, reply_id: str, heard_ms: int, now_s: float) -> None:
        """A playback mark moves the playing clock to what the client reports."""
        reply = self._reply or self._playing
        if reply is not None and reply.reply_id == reply_id:
            reply.started_playing_s = now_s - heard_ms / 1000
        self.check_heard(now_s)

    def _keep_heard(self, reply: Reply, heard_ms: int) -> None:
        self._cut = reply
        if not self.settings.output_audio or not self._conversation.has(reply.item_id):
            return  # text was read as it came
        text, num_tokens = reply.heard_text(heard_ms)
        if text != self._conversation.text_of(reply.item_id):
            self._conversation.set_text(reply.item_id, text)
            engine_id, engine_turn = reply.source
            if engine_id == self.engine_id:  # a closed session has forgotten the reply whole
                self._engine.truncate(engine_id, engine_turn, num_tokens)
            self._emit(m.ReplyCut(reply.item_id, heard_ms, text))

    def close(self) -> None:
        if self._reply is not None:
            self._reply.stop()
        self.held.drop()
