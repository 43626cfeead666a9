"""Fit and cross-validate the end-of-utterance model (asr/end_model.py, asr/endpointing.py).

    .venv/bin/python scripts/fit_endpointing.py CLIPS --cache FILE.json

Examples, each one soft pause as the listener sees it:
    end    the last pause of a clip: the caller has finished
    cut    a clip stopped at a word boundary, with the clip's own noise after it: a hesitation
    pause  a real pause inside a one-sentence clip

Prints the weights for the constants' table, then for every set of sources the cross-validated (by
clip) area under the ROC curve, the mean delay and the cut-off rates.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.model_store import resolve_asr, resolve_llm, resolve_smart_turn
from app.recordings import Recording, find_recordings, load, noise_floor
from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.end_model import Evidence, features, is_greeting, is_whole_answer
from asr.endpointing import (
    GREETING_SILENCE_S,
    SILENCE_RULES,
    SpeechChange,
    SpeechSegmenter,
    VadThresholds,
)
from asr.events import DecodeRequest
from asr.listener import OPEN_BELOW, PREROLL_SAMPLES
from asr.normal_form import prompt_form
from asr.smart_turn import SmartTurn
from asr.vad import WINDOW_SAMPLES, SileroVad
from asr.whisper import Recogniser
from llm_engine.batch import Batch, ExtentView
from llm_engine.chat import ChatTemplate
from llm_engine.model import load_model
from llm_engine.tokenizer import Tokenizer

KINDS = ("question", "command", "dictation")
MAX_CLIP_S = 15.0
MAX_CUTS = 8
HESITATION_S = 0.6
TAIL_S = 2.0
SYSTEM = "You are a friendly voice assistant on the phone. Answer in one or two short sentences."
FOLDS = 5
RIDGE = 3.0
MAX_HESITATION_CUT = 0.19  # a little below the aim: thresholds are chosen on training folds
FIRST_S = (0.16, 0.192, 0.224)
SECOND_S = (0.256, 0.32, 0.384, 0.448)
THIRD_S = (0.704, 0.768, 0.896)  # beyond the hesitation tried: below it the test would be gamed
ALL = (True, True, True)
NO_TURN_CHECK = (False, True, True)
SOURCES = {
    "Smart Turn + reply model + text": ALL,
    "without Smart Turn": NO_TURN_CHECK,
    "without the reply model": (True, False, True),
    "without text": (True, True, False),
    "text only": (False, False, True),
    "Smart Turn only": (True, False, False),
    "reply model only": (False, True, False),
}


@dataclass(frozen=True, slots=True)
class Example:
    clip: str
    kind: str  # end, cut, pause
    text: str
    turn: float
    end: float
    pause_start_s: float
    truth_s: float  # end of speech by the VAD at 0.5 (end), of the last word (cut)
    resume_s: float | None  # when speech goes on: cut, pause


# ---- examples


@dataclass(frozen=True, slots=True)
class SoftPause:
    start: int
    known_at: int
    resumed_at: int | None
    speech_end: int


def soft_pauses(samples: Samples) -> tuple[int, list[SoftPause]]:
    """(first sample of the speech, its soft pauses), as the listener finds them."""
    vad, segmenter = SileroVad(), SpeechSegmenter(VadThresholds())
    found: list[SoftPause] = []
    for start in range(0, len(samples) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
        end = start + WINDOW_SAMPLES
        change = segmenter.push(vad.probability(samples[start:end]), end)
        if change is SpeechChange.PAUSED:
            found.append(SoftPause(segmenter.pause_start, end, None, segmenter.speech_end))
        elif change is SpeechChange.RESUMED:
            found[-1] = replace(found[-1], resumed_at=end)
    return segmenter.start, found


class Judge:
    """All models that give evidence."""

    def __init__(self) -> None:
        llm_path = resolve_llm(None)
        self.recogniser = Recogniser(resolve_asr(None), num_workers=1)
        self._smart_turn = SmartTurn(resolve_smart_turn(None))
        self._tokenizer = Tokenizer(llm_path)
        self._template = ChatTemplate(self._tokenizer)
        self._model = load_model(llm_path, "float32")
        self._arena = self._model.new_arena(2048)
        ends = self._tokenizer.eos_ids | self._tokenizer.sentence_end_ids
        self._end_ids = torch.tensor(sorted(ends))

    def transcribe(self, samples: Samples, *, word_times: bool = False):
        request = DecodeRequest(0, 0, samples, 0.0, "pause", language="en", word_times=word_times)
        return self.recogniser.decode([request])[0]

    def end_probability(self, text: str) -> float:
        segments = self._template.segments(SYSTEM, (), prompt_form(text))
        ids: list[int] = []
        for segment in segments:
            ids.extend(segment.token_ids)
            if segment.role == "slot":
                break
        while ids and self._tokenizer.is_punctuation(ids[-1]):
            ids.pop()
        positions = torch.arange(len(ids))
        batch = Batch(
            token_ids=torch.tensor(ids),
            positions=positions,
            rows=positions,
            query_start=(0, len(ids)),
            extents=((ExtentView(0, len(ids), 0),),),
            logit_tokens=torch.tensor([len(ids) - 1]),
        )
        probabilities = torch.softmax(self._model.forward(batch, self._arena)[0], dim=-1)
        return float(probabilities[self._end_ids].sum())

    def example(
        self, clip: str, kind: str, samples: Samples, start: int, pause: SoftPause, truth: float
    ) -> Example | None:
        heard = samples[max(0, start - PREROLL_SAMPLES) : pause.known_at]
        text = self.transcribe(heard).text
        if not text:
            return None
        resumed_s = None if pause.resumed_at is None else pause.resumed_at / SAMPLE_RATE_HZ
        return Example(
            clip,
            kind,
            text,
            self._smart_turn.probability(heard),
            self.end_probability(text),
            pause.start / SAMPLE_RATE_HZ,
            truth,
            resumed_s,
        )


def examples_of(judge: Judge, recording: Recording) -> Iterator[Example]:
    samples = load(recording)
    tail = noise_floor(samples, round(TAIL_S * SAMPLE_RATE_HZ))
    whole = np.concatenate([samples, tail])
    start, pauses = soft_pauses(whole)
    if not pauses or pauses[-1].resumed_at is not None:
        return
    final = pauses[-1]
    truth_s = final.speech_end / SAMPLE_RATE_HZ
    made = [judge.example(recording.name, "end", whole, start, final, truth_s)]
    is_one_sentence = len(re.findall(r"[.?!](?:\s|$)", recording.reference or "")) <= 1
    if is_one_sentence:
        made += [
            judge.example(recording.name, "pause", whole, start, p, p.speech_end / SAMPLE_RATE_HZ)
            for p in pauses[:-1]
        ]
    made += list(cuts_of(judge, recording.name, whole, start, final, tail))
    yield from (example for example in made if example is not None)


def cuts_of(
    judge: Judge, clip: str, whole: Samples, start: int, final: SoftPause, tail: Samples
) -> Iterator[Example | None]:
    begin = max(0, start - PREROLL_SAMPLES)
    words = judge.transcribe(whole[begin : final.known_at], word_times=True).words[:-1]
    ends = sorted({word.end_s for word in words if word.end_s and word.text[-1] not in ".?!"})
    chosen = ends if len(ends) <= MAX_CUTS else [ends[i * len(ends) // MAX_CUTS] for i in range(8)]
    for end_s in chosen:
        position = begin + round(end_s * SAMPLE_RATE_HZ)
        cut = np.concatenate([whole[:position], tail])
        cut_start, pauses = soft_pauses(cut)
        if pauses and pauses[-1].resumed_at is None:
            hold_until = round((position / SAMPLE_RATE_HZ + HESITATION_S) * SAMPLE_RATE_HZ)
            pause = replace(pauses[-1], resumed_at=hold_until)
            yield judge.example(clip, "cut", cut, cut_start, pause, position / SAMPLE_RATE_HZ)


# ---- logistic regression


def design(examples: Sequence[Example], sources: tuple[bool, bool, bool]) -> np.ndarray:
    """[N, F] bias and features; those of sources that are left out are zero."""
    use_turn, use_end, use_text = sources
    rows = []
    for example in examples:
        evidence = Evidence(
            text=example.text if use_text else None,
            turn_probability=example.turn if use_turn else None,
            end_probability=example.end if use_end else None,
        )
        rows.append((1.0, *features(evidence)))
    return np.array(rows)


def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Ridge logistic regression by Newton's method; both classes weigh the same."""
    sample_weight = np.where(y, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[0, 0] = 1e-6
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (sample_weight * (p - y)) + penalty @ weights
        curvature = (x * (sample_weight * p * (1 - p))[:, None]).T @ x + penalty
        weights = weights - np.linalg.solve(curvature, gradient)
    return weights


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    positive, negative = scores[labels], scores[~labels]
    wins = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    return float(wins)


# ---- the policy


@dataclass(frozen=True, slots=True)
class Policy:
    """Silence required: `steps_s[0]` from probability `limits[0]`, the last below all limits."""

    limits: tuple[float, float]
    steps_s: tuple[float, float, float]

    def required_s(self, q: np.ndarray) -> np.ndarray:
        sure, likely = self.limits
        first, second, third = self.steps_s
        return np.where(q >= sure, first, np.where(q >= likely, second, third))


class Table:
    """The examples as arrays, for judging many policies quickly."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.pause_start_s = np.array([e.pause_start_s for e in examples])
        self.truth_s = np.array([e.truth_s for e in examples])
        self.resume_s = np.array([np.inf if e.resume_s is None else e.resume_s for e in examples])
        self.kinds = np.array([e.kind for e in examples])
        clips = np.array([e.clip for e in examples])
        self.clips, self.clip_of = np.unique(clips, return_inverse=True)
        self.is_answer = np.array([is_whole_answer(e.text) for e in examples])
        self.is_greeting = np.array([is_greeting(e.text) for e in examples])

    def required_s(self, policy: Policy, q: np.ndarray) -> np.ndarray:
        """With the rules for whole answers and greetings on top."""
        required_s = np.where(self.is_answer, policy.steps_s[0], policy.required_s(q))
        return np.where(self.is_greeting, GREETING_SILENCE_S, required_s)

    def judge(self, required_s: np.ndarray) -> dict[str, float]:
        ended_s = self.pause_start_s + required_s
        is_cut = ended_s <= self.resume_s - 1e-6
        delays_ms = 1000 * (ended_s - self.truth_s)[self.kinds == "end"]
        cut_clips = np.unique(self.clip_of[is_cut & (self.kinds == "pause")])
        return {
            "mean_ms": float(delays_ms.mean()),
            "p50_ms": float(np.median(delays_ms)),
            "p90_ms": float(np.percentile(delays_ms, 90)),
            "hesitation_cut": float(is_cut[self.kinds == "cut"].mean()),
            "clips_cut": len(cut_clips) / len(self.clips),
        }


def choose_policy(examples: Sequence[Example], q: np.ndarray) -> Policy:
    """Shortest mean delay within the cut-off bounds."""
    table = Table(examples)
    fixed = table.judge(np.full(len(examples), 0.512))
    best, best_ms = Policy((0.9, 0.5), (0.256, 0.512, 0.896)), np.inf
    sure, likely = (0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6), (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    for limits in product(sure, likely):
        for steps in product(FIRST_S, SECOND_S, THIRD_S):
            if limits[0] <= limits[1]:
                continue
            policy = Policy(limits, steps)
            judged = table.judge(table.required_s(policy, q))
            is_safe = (
                judged["hesitation_cut"] <= MAX_HESITATION_CUT
                and judged["clips_cut"] <= fixed["clips_cut"]
            )
            if is_safe and judged["mean_ms"] < best_ms:
                best, best_ms = policy, judged["mean_ms"]
    return best


def is_end(examples: Sequence[Example]) -> np.ndarray:
    return np.array([e.kind == "end" for e in examples])


def probabilities_of(
    examples: Sequence[Example], training: Sequence[Example], sources: tuple[bool, bool, bool]
) -> np.ndarray:
    weights = fit(design(training, sources), is_end(training))
    return 1 / (1 + np.exp(-design(examples, sources) @ weights))


def as_asked(examples: Sequence[Example], training: Sequence[Example]) -> np.ndarray:
    """As the listener does: Smart Turn is asked only where the other two leave the end open."""
    with_check = probabilities_of(examples, training, ALL)
    without = probabilities_of(examples, training, NO_TURN_CHECK)
    likely = SILENCE_RULES["auto"].steps[1][0]
    return np.where((without > OPEN_BELOW) & (without < likely), with_check, without)


Model = Callable[[Sequence[Example], Sequence[Example]], np.ndarray]  # (examples, training) -> [N]


def cross_validate(examples: list[Example], model: Model):
    """Out-of-fold probabilities and required silences; weights and thresholds from other clips."""
    clips = sorted({e.clip for e in examples})
    order = np.random.default_rng(0).permutation(len(clips))
    fold_of = {clips[c]: i % FOLDS for i, c in enumerate(order)}
    y = is_end(examples)
    folds = np.array([fold_of[e.clip] for e in examples])
    q, required_s = np.zeros(len(y)), np.zeros(len(y))
    for fold in range(FOLDS):
        train, test = folds != fold, folds == fold
        training = [e for e, chosen in zip(examples, train, strict=True) if chosen]
        probabilities = model(examples, training)
        policy = choose_policy(training, probabilities[train])
        q[test] = probabilities[test]
        tested = [e for e, chosen in zip(examples, test, strict=True) if chosen]
        required_s[test] = Table(tested).required_s(policy, probabilities[test])
    return q, y, required_s


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, help="keep the examples here and go on from there")
    arguments = parser.parse_args()
    report(collect(arguments.clips, arguments.cache))


def collect(paths: Sequence[Path], cache: Path | None) -> list[Example]:
    """Examples of all clips; those of clips that `cache` holds are taken from there."""
    examples: list[Example] = []
    if cache is not None and cache.exists():
        examples = [Example(**row) for row in json.loads(cache.read_text())]
    known = {example.clip for example in examples}
    judge = Judge()
    for recording in find_recordings(paths):
        is_wanted = recording.language == "en" and recording.kind in KINDS
        if not is_wanted or recording.name in known:
            continue
        if len(load(recording)) > MAX_CLIP_S * SAMPLE_RATE_HZ:
            continue
        examples.extend(examples_of(judge, recording))
        print(f"{recording.name}: {len(examples)}", file=sys.stderr)
        if cache is not None:
            cache.write_text(json.dumps([asdict(example) for example in examples]))
    return examples


def report(examples: list[Example]) -> None:
    counts = {kind: sum(e.kind == kind for e in examples) for kind in ("end", "cut", "pause")}
    print(f"{len({e.clip for e in examples})} clips, {counts}")
    y = is_end(examples)
    names = ("bias", "turn", "end", "closed", "function_word")
    for use_turn, use_end in product((True, False), repeat=2):
        weights = fit(design(examples, (use_turn, use_end, True)), y)
        print((use_turn, use_end), dict(zip(names, np.round(weights, 2).tolist(), strict=True)))
    print("policy on all clips:", choose_policy(examples, as_asked(examples, examples)))
    table = Table(examples)
    for fixed_s in (0.32, 0.512, 0.704):
        judged = table.judge(np.full(len(examples), fixed_s))
        print(f"fixed {1000 * fixed_s:.0f} ms", {k: round(v, 3) for k, v in judged.items()})
    models: dict[str, Model] = {"as the listener asks": as_asked}
    for name, sources in SOURCES.items():
        models[name] = partial(probabilities_of, sources=sources)
    for name, model in models.items():
        q, labels, required_s = cross_validate(examples, model)
        judged = table.judge(required_s)
        print(f"{name}: AUC {auc(q, labels):.3f}", {k: round(v, 3) for k, v in judged.items()})


if __name__ == "__main__":
    main()
