"""Figures of `bench asr` from what was observed (pure). docs/asr.md defines each."""

from __future__ import annotations

from collections.abc import Sequence

import jiwer
import numpy as np
from whisper_normalizer.english import EnglishTextNormalizer

from app.bench.asr_stream import Observed
from asr.events import Transcript, UtteranceEnded
from asr.normal_form import normal_form

ONSET_S = 0.2  # after the pause's onset: is the final known by then?
PAUSE_KNOWN_S = 0.064  # after its onset
SOON_S = 0.4
LOOP_RATIO = 1.7  # a final this much longer than its reference holds a loop

_normalise = EnglishTextNormalizer()


def word_error_rate(observed: Sequence[Observed], texts: Sequence[str]) -> float:
    references = [_normalise(clip.clip.reference or "") for clip in observed]
    return round(float(jiwer.wer(references, [_normalise(text) for text in texts])), 4)


def figures_of(
    observed: Sequence[Observed], committed_after: int | None = None
) -> dict[str, float]:
    """`committed_after`: stable words are those that many successive hypotheses agreed on once."""
    finals = [" ".join(_text(end) for end in clip.ends) for clip in observed]
    delays_ms = [1000 * (clip.ends[-1].at_s - clip.speech_end_s) for clip in observed if clip.ends]
    speech_s = sum(clip.speech_s for clip in observed)
    words = [_words(clip, end, committed_after) for clip in observed for end in clip.ends]
    shown_s = np.array([delay for word in words for delay in word.shown_delays_s])
    stable_s = np.array([delay for word in words for delay in word.stable_delays_s])
    num_shown = sum(word.num_shown for word in words)
    num_stable = sum(word.num_stable for word in words)
    return {
        "wer_partial": word_error_rate(observed, [_last_partials(clip) for clip in observed]),
        "wer_final": word_error_rate(observed, finals),
        "looping_share": round(
            _mean([_loops(o, t) for o, t in zip(observed, finals, strict=True)]), 4
        ),
        "word_delay_p50_ms": round(1000 * float(np.median(shown_s))),
        "words_soon_share": round(float(np.mean(shown_s <= SOON_S)), 3),
        "revised_share": round(sum(w.num_shown_wrong for w in words) / max(1, num_shown), 3),
        "stable_wrong_share": round(sum(w.num_stable_wrong for w in words) / max(1, num_stable), 3),
        "stable_delay_p50_ms": round(1000 * float(np.median(stable_s))) if len(stable_s) else -1,
        "final_equal_at_pause": round(
            _mean([_is_known(c, e) for c in observed for e in c.ends]), 3
        ),
        "eou_delay_p50_ms": round(float(np.median(delays_ms))),
        "eou_delay_mean_ms": round(float(np.mean(delays_ms))),
        "cut_off_rate": round(_mean([len(clip.ends) > 1 for clip in observed]), 3),
        "lost_share": round(_mean([not text for text in finals]), 4),
        "cpu_s_per_audio_s": round(sum(c.partial_cpu_s for c in observed) / speech_s, 3),
        "pause_cpu_s_per_audio_s": round(
            sum(c.pause_cpu_s + c.turn_cpu_s for c in observed) / speech_s, 3
        ),
    }


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))


def _text(end: UtteranceEnded) -> str:
    return end.transcript.text if end.transcript is not None else ""


def _last_partials(clip: Observed) -> str:
    """The hypothesis of each utterance just before its last pause."""
    texts = []
    for end in clip.ends:
        partials = [t for t in clip.transcripts if t.utterance == end.utterance and not t.at_pause]
        texts.append(partials[-1].text if partials else "")
    return " ".join(texts)


def _loops(clip: Observed, text: str) -> bool:
    num_expected = len(_normalise(clip.clip.reference or "").split())
    return len(_normalise(text).split()) > LOOP_RATIO * num_expected + 1


def _is_known(clip: Observed, end: UtteranceEnded) -> bool:
    """Did the newest hypothesis say the final words by `ONSET_S` after the pause began?"""
    if end.transcript is None:
        return True
    decode_s = clip.pause_decode_s.get(round(end.transcript.end_s, 3), 0.0)
    if PAUSE_KNOWN_S + decode_s <= ONSET_S:
        return True
    earlier = [
        t
        for t in clip.transcripts
        if t.utterance == end.utterance and t.revision < end.transcript.revision
    ]
    return bool(earlier) and normal_form(earlier[-1].text) == normal_form(end.transcript.text)


class _Words:
    """The shown words of one utterance against its final ones, place by place."""

    def __init__(self) -> None:
        self.num_shown = self.num_shown_wrong = 0
        self.num_stable = self.num_stable_wrong = 0
        self.shown_delays_s: list[float] = []
        self.stable_delays_s: list[float] = []


def _words(clip: Observed, end: UtteranceEnded, committed_after: int | None) -> _Words:
    counted = _Words()
    final = end.transcript
    if final is None or len(final.words) != len(final.text.split()):
        return counted
    told = [t for t in clip.transcripts if t.utterance == end.utterance]
    said = [normal_form(word.text) for word in final.words]
    shown: dict[tuple[int, str], float] = {}
    stable: dict[tuple[int, str], float] = {}
    for index, transcript in enumerate(told):
        words = [normal_form(word) for word in transcript.text.split()]
        num_stable = _num_stable(told, index, committed_after)
        for place, word in enumerate(words):
            shown.setdefault((place, word), transcript.end_s)
            if place < num_stable:
                stable.setdefault((place, word), transcript.end_s)
    counted.num_shown, counted.num_stable = len(shown), len(stable)
    counted.num_shown_wrong = sum(not _holds(said, *key) for key in shown)
    counted.num_stable_wrong = sum(not _holds(said, *key) for key in stable)
    for place, word in enumerate(said):
        ended_s = final.words[place].end_s or 0.0
        if (place, word) in shown:
            counted.shown_delays_s.append(shown[place, word] - ended_s)
        if (place, word) in stable:
            counted.stable_delays_s.append(stable[place, word] - ended_s)
    return counted


def _holds(said: Sequence[str], place: int, word: str) -> bool:
    return place < len(said) and said[place] == word


def _num_stable(told: Sequence[Transcript], index: int, committed_after: int | None) -> int:
    if committed_after is None:
        return len(told[index].stable.split())
    if index + 1 < committed_after:
        return 0
    recent = [
        [normal_form(word) for word in transcript.text.split()]
        for transcript in told[index + 1 - committed_after : index + 1]
    ]
    count = 0
    for column in zip(*recent, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count
