"""The running utterance: which audio belongs to which decode, and the text so far (pure).

    start      cut        cut          now
      |---------|----------|============|
       frozen    frozen      open segment

A long utterance is cut into segments, at pauses where there are some. A frozen segment's text comes
from one decode of exactly its audio that is never dropped; partials decode the open segment alone.
So the final text depends on the audio only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asr.agreement import Agreement
from asr.events import DecodeResult, Transcript, Word
from asr.normal_form import prompt_form


@dataclass(slots=True)
class FrozenSegment:
    """`revision` is that of the decode whose text it will hold; until then, the newest guess."""

    revision: int
    text: str
    words: tuple[Word, ...] = ()
    is_final: bool = False


@dataclass(slots=True)
class PauseDecode:
    """The decode of the open segment made at a soft pause."""

    revision: int
    end: int  # sample up to which it decodes
    result: DecodeResult | None = None


@dataclass(slots=True)
class Utterance:
    number: int
    start: int  # sample
    segment_start: int  # sample; start of the open segment
    frozen: list[FrozenSegment] = field(default_factory=list)
    # of the newest pause; None once speech went on and a cut was made
    pause: PauseDecode | None = None
    newest_revision: int = -1  # of the newest decode of the open segment that was shown
    text: str = ""  # newest hypothesis of the open segment
    words: tuple[Word, ...] = ()
    language: str | None = None
    transcript: Transcript | None = None  # the newest one told
    agreement: Agreement = field(default_factory=Agreement)
    turn_probability: float | None = None  # of the running pause
    turn_check_revision: int | None = None  # the check awaited
    is_turn_checked: bool = False  # asked for in the running pause, or not needed
    end_probabilities: dict[str, float] = field(default_factory=dict)  # by prompt text

    @property
    def is_complete(self) -> bool:
        """Every decode that the final text is made of has come back."""
        return (
            all(segment.is_final for segment in self.frozen)
            and self.pause is not None
            and self.pause.result is not None
        )

    def freeze(self, revision: int, next_start: int, result: DecodeResult | None) -> None:
        """Close the open segment with the decode `revision`; the next begins at `next_start`."""
        segment = FrozenSegment(revision, self.text, self.words)
        self.frozen.append(segment)
        if result is not None:
            fill(segment, result)
        self.segment_start = next_start
        self.pause = None
        self.text, self.words = "", ()
        self.newest_revision = revision
        self.agreement = Agreement()

    def freeze_in_pause(self) -> None:
        """Close the open segment at its pause. What follows it is empty until speech goes on, so
        that nothing more need be decoded for it."""
        pause = self.pause
        assert pause is not None, "every pause begins with a decode"
        self.freeze(pause.revision, pause.end, pause.result)
        nothing = DecodeResult(self.number, pause.revision, "")
        self.pause = PauseDecode(pause.revision, pause.end, nothing)

    def make_transcript(
        self, revision: int, end_s: float, *, at_pause: bool, alternatives: tuple[str, ...] = ()
    ) -> Transcript:
        """The whole text as it stands; `alternatives` are further texts of the open segment."""
        before = " ".join(segment.text for segment in self.frozen if segment.text)
        open_words = self.text.split()
        num_stable = self.agreement.push(open_words, end_s, at_pause=at_pause)
        text = _join(before, self.text)
        prompt_text = prompt_form(text)
        others = dict.fromkeys(prompt_form(_join(before, other)) for other in alternatives)
        words = [word for segment in self.frozen for word in segment.words]
        return Transcript(
            utterance=self.number,
            revision=revision,
            stable=_join(before, " ".join(open_words[:num_stable])),
            tentative=" ".join(open_words[num_stable:]),
            text=text,
            prompt_text=prompt_text,
            at_pause=at_pause,
            end_s=end_s,
            alternatives=tuple(other for other in others if other not in ("", prompt_text)),
            language=self.language,
            words=(*words, *self.words),
        )


def fill(segment: FrozenSegment, result: DecodeResult) -> None:
    """Give a frozen segment its decode's text; after a failed decode the newest guess stays."""
    segment.is_final = True
    if result.error is None:
        segment.text, segment.words = result.text, result.words


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
