"""One reply, cut into pieces that are spoken in order; and the held piece of a draft."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from app.ports import Voice
from llm_engine.events import TurnStats
from tts.sentences import SentenceSplitter, speakable

SPOKEN_CHARS_PER_S = 15.0  # of the default voice, for pieces cut off before their length is known


@dataclass(slots=True)
class Piece:
    """A stretch of reply text spoken at once. `chunks` are float32 mono [N]."""

    key: str
    text: str
    was_held: bool = False  # begun for a draft, when the voice may drop it for other work
    chunks: list[np.ndarray] = field(default_factory=list)
    num_sent: int = 0  # chunks handed to the client
    num_samples: int = 0
    is_spoken: bool = False  # the last chunk has come
    first_chunk_s: float | None = None

    def add(self, samples: np.ndarray | None, is_last: bool, now_s: float) -> None:
        if samples is not None and len(samples):
            self.chunks.append(samples)
            self.num_samples += len(samples)
            if self.first_chunk_s is None:
                self.first_chunk_s = now_s
        self.is_spoken = self.is_spoken or is_last

    @property
    def is_dropped(self) -> bool:
        """Begun for a draft, and ended without a sound: it must be spoken anew."""
        return self.was_held and self.is_spoken and not self.chunks


class HeldPiece:
    """The first piece of the newest draft, synthesised ahead. Nothing of it leaves before commit.

    It is keyed by its text: a draft that changes behind its first piece keeps it, and a reply that
    begins with the same piece takes it over.
    """

    def __init__(self, voice: Voice, name: str) -> None:
        self._voice = voice
        self._name = name
        self._num_made = 0
        self.piece: Piece | None = None

    def on_draft(self, text: str, *, is_complete: bool) -> None:
        splitter = SentenceSplitter()
        pieces = splitter.push(text)
        if not pieces and is_complete:
            pieces = splitter.finish()
        if not pieces or (self.piece is not None and self.piece.text == pieces[0]):
            return
        self.drop()
        self._num_made += 1
        self.piece = Piece(f"{self._name}-held-{self._num_made}", pieces[0], was_held=True)
        self._voice.submit(self.piece.key, speakable(pieces[0]), held=True)

    def take(self, text: str) -> Piece | None:
        """Hand over the held piece if it speaks exactly `text`; otherwise drop it. One that the
        voice dropped counts as none."""
        piece, self.piece = self.piece, None
        if piece is None or piece.is_dropped:
            return None
        if piece.text != text:
            self._voice.cancel(piece.key)
            return None
        self._voice.promote(piece.key)
        return piece

    def drop(self) -> None:
        if self.piece is not None:
            self._voice.cancel(self.piece.key)
            self.piece = None


class Reply:
    """Committed reply text in, pieces of audio out, in order."""

    def __init__(
        self,
        reply_id: str,
        item_id: str,
        source: tuple[str, int],
        voice: Voice,
        held: HeldPiece,
        *,
        speaks: bool,
        sample_rate_hz: int,
        num_prompt_tokens: int,
    ) -> None:
        self.reply_id = reply_id
        self.item_id = item_id
        self.source = source  # engine session and turn
        self.text = ""
        self.is_generated = False  # the engine is done with it
        self.is_accounted = False  # and has told what it cost
        self.reason = "stop"
        self.stats = TurnStats()
        self.num_samples_sent = 0
        self.started_playing_s: float | None = None
        self.is_partly_mute = False  # and the client knows it
        self._num_prompt_tokens = num_prompt_tokens
        self._deltas: list[tuple[str, int]] = []  # text, number of tokens
        self._voice = voice
        self._held = held
        self._speaks = speaks
        self._sample_rate_hz = sample_rate_hz
        self._splitter = SentenceSplitter()
        self._pieces: list[Piece] = []

    @property
    def is_finished(self) -> bool:
        """Generated, spoken, and handed over whole."""
        return self.is_generated and all(
            piece.is_spoken and piece.num_sent == len(piece.chunks) for piece in self._pieces
        )

    @property
    def awaits_first_audio(self) -> bool:
        """Its first piece is with the voice, and nothing of it has come yet."""
        first = self._pieces[0] if self._pieces else None
        return first is not None and not first.chunks and not first.is_spoken

    @property
    def first_audio_ready_s(self) -> float | None:
        return self._pieces[0].first_chunk_s if self._pieces else None

    @property
    def sent_ms(self) -> int:
        return self.num_samples_sent * 1000 // self._sample_rate_hz

    @property
    def usage(self) -> dict[str, int]:
        """Tokens read and written; of a reply that was cut off, as far as it had come."""
        if self.is_accounted:
            return {
                "prompt_tokens": self.stats.prompt_tokens,
                "cached_tokens": self.stats.cached_prompt_tokens,
                "reply_tokens": self.stats.reply_tokens,
            }
        num_written = sum(num_tokens for _, num_tokens in self._deltas)
        return {"prompt_tokens": self._num_prompt_tokens, "reply_tokens": num_written}

    def on_delta(self, text: str, num_tokens: int) -> None:
        self.text += text
        self._deltas.append((text, num_tokens))
        self._speak(self._splitter.push(text))

    def on_generated(self, reason: str, stats: TurnStats) -> None:
        self.is_generated = self.is_accounted = True
        self.stats = stats
        self.reason = reason
        self._speak(self._splitter.finish())
        if not self._pieces:
            self._held.drop()

    def on_chunk(self, key: str, samples: np.ndarray | None, is_last: bool, now_s: float) -> bool:
        """Take a chunk of one of this reply's pieces; False if the key is not one of them."""
        for piece in self._pieces:
            if piece.key == key:
                piece.add(samples, is_last, now_s)
                if piece.is_dropped:  # just before it was promoted
                    piece.was_held = piece.is_spoken = False
                    piece.key = self._key(self._pieces.index(piece))
                    self._voice.submit(piece.key, speakable(piece.text), held=False)
                return True
        return False

    def has_own(self, key: str) -> bool:
        """`key` is a piece that was asked for when its words were committed."""
        return any(piece.key == key and not piece.was_held for piece in self._pieces)

    def audio_to_send(self) -> list[tuple[np.ndarray, str]]:
        """Chunks that may leave now, each with its piece's text if it is the piece's first."""
        ready: list[tuple[np.ndarray, str]] = []
        for piece in self._pieces:
            while piece.num_sent < len(piece.chunks):
                samples = piece.chunks[piece.num_sent]
                ready.append((samples, "" if piece.num_sent else piece.text))
                piece.chunks[piece.num_sent] = samples[:0]  # sent audio is not kept
                piece.num_sent += 1
                self.num_samples_sent += len(samples)
            if not piece.is_spoken:
                break
        return ready

    def stop(self) -> None:
        """Cut the reply off: nothing more is spoken."""
        self._held.drop()
        for piece in self._pieces:
            if not piece.is_spoken:
                self._voice.cancel(piece.key)
        self.is_generated = True

    def move_clock(self, by_s: float) -> None:
        if self.started_playing_s is not None:
            self.started_playing_s += by_s
        for piece in self._pieces:
            if piece.first_chunk_s is not None:
                piece.first_chunk_s += by_s

    def heard_ms(self, now_s: float) -> int:
        """How much of the audio sent has been played by `now_s`, if it plays without a gap."""
        if self.started_playing_s is None:
            return 0
        return max(0, min(self.sent_ms, int((now_s - self.started_playing_s) * 1000)))

    def heard_text(self, heard_ms: int) -> tuple[str, int]:
        """The words within the first `heard_ms` of audio, and how many whole tokens they hold.

        A piece in progress counts by the share of its duration, cut back to the last whole word.
        """
        samples_left = heard_ms * self._sample_rate_hz // 1000
        num_chars = 0
        for piece in self._pieces:
            start = self.text.find(piece.text, num_chars)
            if start < 0 or samples_left <= 0:
                break
            if samples_left >= piece.num_samples and piece.is_spoken:
                num_chars = start + len(piece.text)
                samples_left -= piece.num_samples
                continue
            duration = max(piece.num_samples, self._likely_samples(piece.text))
            spoken = piece.text[: int(len(piece.text) * samples_left / duration)]
            whole_words = spoken.rsplit(" ", 1)[0] if " " in spoken else ""
            num_chars = start + len(whole_words) if whole_words else num_chars
            break
        return self.text[:num_chars].rstrip(), self._num_tokens_within(num_chars)

    def _likely_samples(self, text: str) -> int:
        """How long a piece will be that is not spoken to its end yet."""
        return max(1, int(len(text) / SPOKEN_CHARS_PER_S * self._sample_rate_hz))

    def _num_tokens_within(self, num_chars: int) -> int:
        """Tokens of the first `num_chars`; of a delta cut in two, its share."""
        num_tokens = position = 0
        for text, count in self._deltas:
            if position + len(text.rstrip()) > num_chars:
                return num_tokens + count * max(0, num_chars - position) // len(text)
            position += len(text)
            num_tokens += count
        return num_tokens

    def _speak(self, texts: list[str]) -> None:
        if not self._speaks:
            return
        for text in texts:
            taken = self._held.take(text) if not self._pieces else None
            piece = taken or Piece(self._key(len(self._pieces)), text)
            self._pieces.append(piece)
            if taken is None:
                self._voice.submit(piece.key, speakable(text), held=False)

    def _key(self, index: int) -> str:
        return f"{self.reply_id}-{index}"
