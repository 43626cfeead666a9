"""One caller's stream: samples and results in, events and requests out (pure; audio time only).

Windows are taken one by one, so that chunking changes nothing. Where the end of an utterance hangs
on a decode or turn check that is still out, the following windows wait for it: a slow recogniser
delays the decision but never changes it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Literal

from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.buffer import AudioBuffer
from asr.end_model import Evidence, joint_probability
from asr.endpointing import (
    SILENCE_RULES,
    SpeechChange,
    SpeechSegmenter,
    SpeechState,
    required_silence,
    silence_samples,
)
from asr.events import (
    AsrFailed,
    AsrResult,
    DecodeRequest,
    DecodeResult,
    ListenerEvent,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    Transcript,
    TurnCheckRequest,
    TurnCheckResult,
    UtteranceEnded,
)
from asr.pacing import PartialPacing
from asr.settings import ListenerSettings
from asr.smart_turn import WINDOW_SAMPLES as TURN_CHECK_SAMPLES
from asr.utterance import PauseDecode, Utterance, fill
from asr.vad import WINDOW_SAMPLES, Vad

Events = list[ListenerEvent]


class Verdict(Enum):
    GO_ON = auto()
    WAIT = auto()
    END = auto()


PREROLL_SAMPLES = round(0.3 * SAMPLE_RATE_HZ)  # soft onsets score late
CUT_AT_PAUSE_SAMPLES = 8 * SAMPLE_RATE_HZ  # an open segment this long is cut at the next pause
CUT_ANYWHERE_SAMPLES = 20 * SAMPLE_RATE_HZ  # and this long where it sounds least like speech
CUT_SEARCH_SAMPLES = 5 * SAMPLE_RATE_HZ
KEEP_IDLE_SAMPLES = SAMPLE_RATE_HZ
KEEP_PAUSE_SAMPLES = 3 * SAMPLE_RATE_HZ  # of a pause that only the client can end
MAX_END_PROBABILITIES = 64  # the newest; only those of texts that come again are of use
OPEN_BELOW = 0.25  # a joint probability below it: the sentence is open, however it sounds


class Listener:
    """See the module. Feed it from one thread."""

    def __init__(self, settings: ListenerSettings, vad: Vad) -> None:
        self._vad = vad
        self._buffer = AudioBuffer()
        self._segmenter = SpeechSegmenter(settings.thresholds)
        self._settings = settings
        self._now = 0  # end of the last window taken
        self._floor = 0  # audio before it belongs to an ended utterance
        self._utterance: Utterance | None = None
        self._num_utterances = 0
        self._num_requests = 0
        self._num_transcripts = 0
        self._partials = PartialPacing()
        self._request_ends: dict[int, int] = {}  # by revision: sample up to which it decodes
        self._recent_probabilities: deque[tuple[float, int]] = deque(
            maxlen=CUT_SEARCH_SAMPLES // WINDOW_SAMPLES
        )
        # (sample, reason) of ends asked for from outside
        self._ends: deque[tuple[int, str]] = deque()
        self._forced_reason: str | None = None
        self._told_at = 0  # samples received when the pause's transcript was told

    @property
    def now_s(self) -> float:
        """Audio time: seconds received."""
        return self._buffer.end / SAMPLE_RATE_HZ

    @property
    def is_in_utterance(self) -> bool:
        return self._utterance is not None

    @property
    def settings(self) -> ListenerSettings:
        return self._settings

    def configure(self, settings: ListenerSettings) -> None:
        """New settings from the next window on."""
        self._settings = settings
        self._segmenter.thresholds = settings.thresholds

    # ---- in

    def push(self, samples: Samples) -> Events:
        """`samples` [N] float32 mono 16 kHz, any N."""
        self._buffer.append(samples)
        return self._drain()

    def on_result(self, result: AsrResult) -> Events:
        """A worker's answer; any order, and answers about ended utterances are ignored."""
        if isinstance(result, TurnCheckResult):
            self._take_turn_check(result)
            return self._drain()
        return self._take_decode(result) + self._drain()

    def on_end_probability(self, utterance: int, revision: int, probability: float) -> Events:
        """The reply model's P(the message ends here) for the transcript `revision`."""
        current = self._utterance
        if current is None or current.number != utterance:
            return []
        transcript = current.transcript
        if transcript is not None and transcript.revision == revision:
            known = current.end_probabilities
            known[transcript.prompt_text] = probability
            if len(known) > MAX_END_PROBABILITIES:
                del known[next(iter(known))]
        return self._drain()

    def commit(self) -> Events:
        """The client says that the utterance ends with the audio pushed so far."""
        self._ends.append((self._buffer.end, "commit"))
        return self._drain()

    def finish(self) -> Events:
        """No more audio: a running utterance ends here."""
        self._ends.append((self._buffer.end, "finish"))
        return self._drain()

    def reset(self) -> Events:
        """Forget all audio so far. A running utterance ends with nothing said."""
        events: Events = []
        if self._utterance is not None:
            events.append(self._ended(self._utterance, "cleared", None))
        self._close()
        self._ends.clear()
        self._now = self._floor = self._buffer.end
        self._buffer.drop_before(self._now)
        self._vad.reset()
        return events

    # ---- windows

    def _drain(self) -> Events:
        """Take every window that may be taken."""
        events: Events = []
        while True:
            self._check_turn_if_unsure(events)
            verdict, reason = self._verdict()
            if verdict is Verdict.WAIT:
                break
            if verdict is Verdict.END:
                assert self._utterance is not None
                events.append(self._ended(self._utterance, reason, self._now))
                self._close()
            elif self._ends and self._ends[0][0] < self._now + WINDOW_SAMPLES:
                self._force_end(events)
            elif self._buffer.end - self._now >= WINDOW_SAMPLES:
                self._take_window(events)
            else:
                break
        return events

    def _take_window(self, events: Events) -> None:
        window = self._buffer.view(self._now, self._now + WINDOW_SAMPLES)
        probability = self._vad.probability(window)
        self._now += WINDOW_SAMPLES
        self._recent_probabilities.append((probability, self._now))
        change = self._segmenter.push(probability, self._now)
        if change is SpeechChange.STARTED:
            events.append(self._start())
        utterance = self._utterance
        if utterance is None:
            self._buffer.drop_before(self._now - KEEP_IDLE_SAMPLES)
            return
        if change is SpeechChange.PAUSED:
            events.append(SpeechPaused(utterance.number, self._now / SAMPLE_RATE_HZ))
            self._request_pause(utterance, self._now, events)
        elif change is SpeechChange.RESUMED:
            events.append(SpeechResumed(utterance.number, self._now / SAMPLE_RATE_HZ))
            self._resume(utterance)
        if self._segmenter.state is SpeechState.SPEAKING:
            self._cut_if_long(utterance, events)
            # in what may be a pause a partial would only delay the pause's own decode
            is_voiced = probability >= self._segmenter.thresholds.on
            if is_voiced and self._partials.is_due(self._now, self._settings):
                request = self._request_decode(utterance, "partial", self._now)
                events.append(request)
                self._partials.sent(
                    request.revision, self._now, len(request.samples), self._settings
                )
        elif self._settings.turn_detection == "none":
            self._forget_silence(utterance)

    def _start(self) -> SpeechStarted:
        start = max(self._segmenter.start - PREROLL_SAMPLES, self._floor, self._buffer.start)
        self._utterance = Utterance(self._num_utterances, start, start)
        self._num_utterances += 1
        self._partials.restart(self._segmenter.start, self._settings)
        return SpeechStarted(self._utterance.number, self._segmenter.start / SAMPLE_RATE_HZ)

    def _resume(self, utterance: Utterance) -> None:
        pause = utterance.pause
        assert pause is not None, "every pause begins with a decode"
        if pause.end - utterance.segment_start >= CUT_AT_PAUSE_SAMPLES:
            utterance.freeze(pause.revision, pause.end, pause.result)
            self._forget_audio(utterance)
        self._partials.restart(self._now, self._settings)

    def _cut_if_long(self, utterance: Utterance, events: Events) -> None:
        if self._now - utterance.segment_start < CUT_ANYWHERE_SAMPLES:
            return
        _, cut = min(self._recent_probabilities, key=lambda item: item[0])
        events.append(self._request_decode(utterance, "segment", cut))
        utterance.freeze(self._num_requests - 1, cut, None)
        self._forget_audio(utterance)

    def _forget_silence(self, utterance: Utterance) -> None:
        """A pause that only the client ends may last for hours: the segment is closed, and what
        comes when speech goes on begins a little before that."""
        pause = utterance.pause
        assert pause is not None, "every pause begins with a decode"
        if self._now - self._segmenter.pause_start < KEEP_PAUSE_SAMPLES:
            return
        if utterance.segment_start < pause.end:
            utterance.freeze_in_pause()
            utterance.is_turn_checked = True  # its sound is about to be forgotten
        utterance.segment_start = max(utterance.segment_start, self._now - PREROLL_SAMPLES)
        self._forget_audio(utterance)

    def _forget_audio(self, utterance: Utterance) -> None:
        self._buffer.drop_before(min(utterance.segment_start, self._now - TURN_CHECK_SAMPLES))
        newest = utterance.newest_revision
        self._request_ends = {r: end for r, end in self._request_ends.items() if r > newest}

    def _force_end(self, events: Events) -> None:
        """The client committed, or the stream is over."""
        position, reason = self._ends.popleft()
        utterance = self._utterance
        if utterance is None:
            return
        self._forced_reason = reason
        if self._segmenter.state is not SpeechState.PAUSED:
            self._request_pause(utterance, position, events)

    def _is_open(self, evidence: Evidence) -> bool:
        """Neither the words nor the reply model say clearly whether the caller has finished.

        Where they make it likely, the turn is over before the sound has been judged.
        """
        likely = SILENCE_RULES[self._settings.eagerness].steps[1][0]
        return bool(evidence.text) and OPEN_BELOW < joint_probability(evidence) < likely

    # ---- requests

    def _request_pause(self, utterance: Utterance, end: int, events: Events) -> None:
        events.append(self._request_decode(utterance, "pause", end))
        utterance.pause = PauseDecode(self._num_requests - 1, end)
        utterance.turn_probability = None
        utterance.turn_check_revision = None
        utterance.is_turn_checked = False

    def _check_turn_if_unsure(self, events: Events) -> None:
        """Ask how the pause sounds, where the words and the reply model leave it open.

        The check takes as long as ten reply tokens, on the cores that draft the reply.
        """
        utterance, settings = self._utterance, self._settings
        if utterance is None or self._segmenter.state is not SpeechState.PAUSED:
            return
        pause = utterance.pause
        if utterance.is_turn_checked or pause is None or not utterance.is_complete:
            return
        if utterance.transcript is None or self._forced_reason is not None:
            return
        if settings.turn_detection != "semantic_vad" or not settings.use_smart_turn:
            return
        evidence = self._evidence(utterance)
        grace = settings.end_probability_grace_ms * SAMPLE_RATE_HZ // 1000
        if evidence.end_probability is None and self._buffer.end < self._told_at + grace:
            return
        utterance.is_turn_checked = True
        if not self._is_open(evidence):
            return
        utterance.turn_check_revision = self._num_requests
        self._num_requests += 1
        start = max(utterance.start, self._buffer.start, pause.end - TURN_CHECK_SAMPLES)
        samples = self._buffer.copy(start, pause.end)
        events.append(TurnCheckRequest(utterance.number, utterance.turn_check_revision, samples))

    def _request_decode(
        self, utterance: Utterance, kind: Literal["partial", "pause", "segment"], end: int
    ) -> DecodeRequest:
        revision = self._num_requests
        self._num_requests += 1
        self._request_ends[revision] = end
        is_final = kind != "partial"
        return DecodeRequest(
            utterance=utterance.number,
            revision=revision,
            samples=self._buffer.copy(utterance.segment_start, end),
            start_s=utterance.segment_start / SAMPLE_RATE_HZ,
            kind=kind,
            language=self._settings.language,
            hot_words=self._settings.hot_words,
            num_hypotheses=self._settings.num_hypotheses if is_final else 1,
            word_times=self._settings.word_times and is_final,
            draft=utterance.text,
        )

    # ---- results

    def _take_turn_check(self, result: TurnCheckResult) -> None:
        utterance = self._utterance
        if utterance is not None and utterance.turn_check_revision == result.revision:
            utterance.turn_check_revision = None
            utterance.turn_probability = result.probability

    def _take_decode(self, result: DecodeResult) -> Events:
        self._partials.answered(result.revision)
        utterance = self._utterance
        if utterance is None or utterance.number != result.utterance or result.dropped:
            return []
        events: Events = []
        if result.error is not None:
            events.append(AsrFailed(utterance.number, result.error))
        frozen = next((s for s in utterance.frozen if s.revision == result.revision), None)
        if frozen is not None:
            fill(frozen, result)
            utterance.language = utterance.language or result.language
            if utterance.is_complete:
                events.append(self._tell_pause(utterance))
        elif utterance.pause is not None and utterance.pause.revision == result.revision:
            utterance.pause.result = result
            self._show(utterance, result)
            if utterance.is_complete:
                events.append(self._tell_pause(utterance))
        elif result.error is None and result.revision > utterance.newest_revision:
            self._show(utterance, result)
            if result.text or utterance.transcript is not None:
                end_s = self._request_ends[result.revision] / SAMPLE_RATE_HZ
                events.append(self._tell(utterance, end_s, at_pause=False))
        return events

    def _show(self, utterance: Utterance, result: DecodeResult) -> None:
        if result.error is None and result.revision > utterance.newest_revision:
            utterance.newest_revision = result.revision
            utterance.text, utterance.words = result.text, result.words
            utterance.language = result.language

    def _tell_pause(self, utterance: Utterance) -> Transcript:
        pause = utterance.pause
        assert pause is not None and pause.result is not None
        self._told_at = self._buffer.end
        is_still_paused = (
            self._segmenter.state is SpeechState.PAUSED or self._forced_reason is not None
        )
        return self._tell(
            utterance,
            pause.end / SAMPLE_RATE_HZ,
            at_pause=is_still_paused,
            alternatives=pause.result.alternatives,
        )

    def _tell(
        self,
        utterance: Utterance,
        end_s: float,
        *,
        at_pause: bool,
        alternatives: tuple[str, ...] = (),
    ) -> Transcript:
        transcript = utterance.make_transcript(
            self._num_transcripts, end_s, at_pause=at_pause, alternatives=alternatives
        )
        self._num_transcripts += 1
        utterance.transcript = transcript
        return transcript

    # ---- the end

    def _verdict(self) -> tuple[Verdict, str]:
        """May the next window be taken, must it wait, or is the utterance over?"""
        utterance, settings = self._utterance, self._settings
        if utterance is None:
            return Verdict.GO_ON, ""
        if self._forced_reason is not None:
            return (Verdict.END if utterance.is_complete else Verdict.WAIT), self._forced_reason
        if self._segmenter.state is not SpeechState.PAUSED or settings.turn_detection == "none":
            return Verdict.GO_ON, ""
        silence = self._now - self._segmenter.pause_start
        if settings.turn_detection == "server_vad":
            if silence < silence_samples(settings.silence_ms / 1000):
                return Verdict.GO_ON, ""
            return (Verdict.END if utterance.is_complete else Verdict.WAIT), "server_vad"
        if silence < silence_samples(SILENCE_RULES[settings.eagerness].shortest_s):
            return Verdict.GO_ON, ""
        if not utterance.is_complete:
            return Verdict.WAIT, ""
        evidence = self._evidence(utterance)
        if utterance.turn_check_revision is not None:
            if evidence.end_probability is None or self._is_open(evidence):
                return Verdict.WAIT, ""
            utterance.turn_check_revision = None  # the reply model, if late, has made it needless
        required_s, reason = required_silence(evidence, settings.eagerness)
        if silence < silence_samples(required_s):
            return Verdict.GO_ON, ""
        if evidence.end_probability is None and evidence.text and not self._ends:
            grace = settings.end_probability_grace_ms * SAMPLE_RATE_HZ // 1000
            if self._buffer.end < self._told_at + grace:
                return Verdict.WAIT, ""
        return Verdict.END, reason

    def _evidence(self, utterance: Utterance) -> Evidence:
        transcript = utterance.transcript
        assert transcript is not None, "a complete utterance has been told"
        return Evidence(
            text=transcript.text,
            turn_probability=utterance.turn_probability,
            end_probability=utterance.end_probabilities.get(transcript.prompt_text),
        )

    def _ended(self, utterance: Utterance, reason: str, at: int | None) -> UtteranceEnded:
        transcript = utterance.transcript if at is not None else None
        return UtteranceEnded(
            utterance=utterance.number,
            at_s=(self._buffer.end if at is None else at) / SAMPLE_RATE_HZ,
            speech_end_s=self._segmenter.speech_end / SAMPLE_RATE_HZ,
            transcript=transcript if transcript is not None and transcript.text else None,
            reason=reason,
        )

    def _close(self) -> None:
        self._utterance = None
        self._forced_reason = None
        self._request_ends.clear()
        self._segmenter.end()
        self._floor = self._now
        self._buffer.drop_before(self._floor)
