"""The recogniser: Whisper in CTranslate2, encoding only the speech.

Whisper is trained on 30 s windows and stops reliably only if padding follows the speech. Encoding
that padding for every partial costs most of the time, so only the speech is encoded and
`GRAFT_FRAMES` rows of encoder output, computed once from padding at the same positions, are
appended (docs/asr.md). On CPUs the text comes from a decoder of our own (`decoder.py`), which
checks the draft that a request may carry instead of writing it again.

Shapes: M mel bins, F mel frames (100/s), E encoder frames (50/s), D model width.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import ctranslate2
import numpy as np
import tokenizers
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.utils import _MODELS
from numpy.typing import NDArray

from asr.audio import SAMPLE_RATE_HZ, Samples, read_file
from asr.ct2_weights import read_weights
from asr.decoder import TextDecoder
from asr.errors import (
    DeviceUnavailable,
    ModelBroken,
    ModelNotFound,
    UnsupportedComputeType,
    UnsupportedLanguage,
)
from asr.events import DecodeRequest, DecodeResult, Word
from asr.grafted_decoder import GRAFT_FRAMES, GraftedDecoder
from asr.greedy import TokenRules
from asr.guards import SpeechGates, cut_loops, max_new_tokens
from asr.kept_table import KeptTable
from asr.mel import FRAMES_PER_S, log_mel
from asr.normal_form import normal_form
from asr.words import place_words

Encoded = NDArray[np.float32]

logger = logging.getLogger(__name__)

FULL_WINDOW_S = 30.0
ENCODER_FRAMES_PER_S = FRAMES_PER_S // 2
FULL_FRAMES = round(FULL_WINDOW_S * ENCODER_FRAMES_PER_S)
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = FULL_WINDOW_S - GRAFT_FRAMES / ENCODER_FRAMES_PER_S
REPETITION_PENALTY = 1.1  # with the graft; 1.15 and more forbids words that rightly come again
FULL_WINDOW_BEAMS = 5
MAX_PROMPT_TOKENS = 100
MAX_BATCH = 4  # beyond it CTranslate2 gains nothing
MAX_ALTERNATIVE_GAP = 1.0  # nats between two hypotheses that count as close
CLIP_MARGIN_FRAMES = 30  # rows after the clip that may still hold traces of it
_LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")
SELF_CHECK_CLIP = Path(__file__).parent / "assets" / "self_check.wav"


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    text: str
    token_ids: tuple[int, ...]
    log_probability: float  # mean per token
    no_speech_probability: float
    alternatives: tuple[str, ...] = ()


class Recogniser:
    """One model, shared by all sessions; `decode` may be called from several threads.

    Args:
        model: folder with a CTranslate2 Whisper model.
        device: "cpu", "cuda", or "auto" for the GPU where there is one.
        compute_type: one that CTranslate2 has on that device, e.g. "int8", "float16".
        num_threads: per decode; `num_workers` decodes run at once. CPUs do better with workers.
        use_graft: False decodes full 30 s windows, as Whisper does by itself.
        second_opinion_below: finals with a mean log probability below it are decoded again in
            the full window with a wide beam; None: never.
        cache_folder: where what is derived from the model is kept from start to start (it takes
            seconds to make); None: nowhere.

    Raises:
        ModelNotFound, ModelBroken, DeviceUnavailable, UnsupportedComputeType
    """

    def __init__(
        self,
        model: Path,
        *,
        device: str = "cpu",
        compute_type: str = "int8",
        num_threads: int = 1,
        num_workers: int = 2,
        use_graft: bool = True,
        second_opinion_below: float | None = None,
        gates: SpeechGates | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        if not model.is_dir():
            raise ModelNotFound(model)
        device = _checked_device(device, compute_type)
        self._text_decoder: GraftedDecoder | None = None
        self._second_opinion_below = second_opinion_below
        self._gates = gates or SpeechGates()
        try:
            self._model = ctranslate2.models.Whisper(
                str(model),
                device=device,
                compute_type=compute_type,
                intra_threads=num_threads,
                inter_threads=num_workers,
            )
            self._hf_tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        except Exception as error:  # both libraries raise bare RuntimeError and Exception
            raise ModelBroken(model, str(error)) from error
        self.is_multilingual: bool = self._model.is_multilingual
        self._graft_table: Encoded | None = None
        if use_graft:
            computed_by = f"CTranslate2 {ctranslate2.__version__} {device} {compute_type}"
            kept = KeptTable.of(model, computed_by, cache_folder)
            self._graft_table = kept.load()
            if self._graft_table is None:
                self._graft_table = self._make_graft_table()
                kept.save(self._graft_table)
        if self.uses_graft and device == "cpu":
            self._text_decoder = self._make_text_decoder(model, num_threads)

    @property
    def uses_graft(self) -> bool:
        """False where the self-check failed or the graft was switched off: full windows then."""
        return self._graft_table is not None

    @property
    def max_batch(self) -> int:
        """See `asr.worker.Decoder`. Our own text decoder takes one request after the other."""
        return 1 if self._text_decoder is not None else MAX_BATCH

    def warm_up(self) -> None:
        """Run the model once, so that the first caller waits no longer than the tenth."""
        self.decode([DecodeRequest(0, 0, read_file(SELF_CHECK_CLIP), 0.0, "partial")])

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """Codes such as "en" that a request may name."""
        if not self.is_multilingual:
            return ("en",)
        tokens = (_LANGUAGE_TOKEN.fullmatch(token) for token in self._hf_tokenizer.get_vocab())
        return tuple(sorted(token[1] for token in tokens if token))

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodeResult]:
        """Transcribe each request.

        Requests of like settings and similar length share their passes.
        """
        results: dict[int, DecodeResult] = {}
        keyed = sorted(
            range(len(requests)),
            key=lambda i: (_settings_key(requests[i]), len(requests[i].samples)),
        )
        for _, group in groupby(keyed, key=lambda i: _settings_key(requests[i])):
            indices = list(group)
            batch = [requests[i] for i in indices]
            results.update(zip(indices, self._decode_alike(batch), strict=True))
        return [results[i] for i in range(len(requests))]

    # ---- one batch of requests with equal settings

    def _decode_alike(self, batch: list[DecodeRequest]) -> list[DecodeResult]:
        encoded = [self._encode(request.samples) for request in batch]
        language = batch[0].language
        if language is None and self.is_multilingual:
            return [
                self._decode_language(request, rows, self._detect(rows))
                for request, rows in zip(batch, encoded, strict=True)
            ]
        hypotheses = self._generate(batch, encoded, language)
        return [
            self._result(request, rows, hypothesis, language)
            for request, rows, hypothesis in zip(batch, encoded, hypotheses, strict=True)
        ]

    def _decode_language(
        self, request: DecodeRequest, encoded: Encoded, language: str
    ) -> DecodeResult:
        (hypothesis,) = self._generate([request], [encoded], language)
        return self._result(request, encoded, hypothesis, language)

    def _encode(self, samples: Samples) -> Encoded:
        """[1, E, D]: the window's own frames, without the graft."""
        return self._encode_full(samples) if not self.uses_graft else self._encode_speech(samples)

    def _grafted(self, own: Sequence[Encoded]) -> Encoded:
        """[B, E, D]: each window's own frames, then padding's, to the same length."""
        if self._graft_table is None:
            return np.concatenate(own)
        num_frames = min(max(rows.shape[1] for rows in own) + GRAFT_FRAMES, FULL_FRAMES)
        table = self._graft_table
        return np.concatenate(
            [np.concatenate([rows, table[:, rows.shape[1] : num_frames]], axis=1) for rows in own]
        )

    def _encode_speech(self, samples: Samples) -> Encoded:
        limit = round(MAX_WINDOW_S * SAMPLE_RATE_HZ)
        return self._encode_mel(_padded(samples[:limit], MIN_WINDOW_S))

    def _encode_full(self, samples: Samples) -> Encoded:
        limit = round(FULL_WINDOW_S * SAMPLE_RATE_HZ)
        return self._encode_mel(_padded(samples[:limit], FULL_WINDOW_S))

    def _encode_mel(self, samples: Samples) -> Encoded:
        features = log_mel(samples, self._model.n_mels)[None]  # [1, M, F]
        view = self._model.encode(ctranslate2.StorageView.from_array(features), to_cpu=True)
        return np.array(view.to(ctranslate2.DataType.float32))

    def _generate(
        self, batch: list[DecodeRequest], encoded: Sequence[Encoded], language: str | None
    ) -> list[_Hypothesis]:
        first = batch[0]
        if self._text_decoder is not None and first.num_hypotheses <= 1:
            return [
                self._check_draft(self._text_decoder, request, rows, language)
                for request, rows in zip(batch, encoded, strict=True)
            ]
        duration_s = max(len(request.samples) for request in batch) / SAMPLE_RATE_HZ
        prompt = self._prompt(language, first.hot_words)
        outputs = self._model.generate(
            ctranslate2.StorageView.from_array(np.ascontiguousarray(self._grafted(encoded))),
            [prompt] * len(batch),
            beam_size=max(1, first.num_hypotheses),
            num_hypotheses=max(1, first.num_hypotheses),
            repetition_penalty=REPETITION_PENALTY if self.uses_graft else 1.0,
            # CTranslate2 halves max_length between prompt and text.
            max_length=2 * (max_new_tokens(duration_s) + len(prompt)),
            return_scores=True,
            return_no_speech_prob=True,
        )
        return [
            self._hypothesis(output, len(request.samples) / SAMPLE_RATE_HZ)
            for output, request in zip(outputs, batch, strict=True)
        ]

    def _check_draft(
        self,
        decoder: GraftedDecoder,
        request: DecodeRequest,
        encoded: Encoded,
        language: str | None,
    ) -> _Hypothesis:
        duration_s = len(request.samples) / SAMPLE_RATE_HZ
        tokenizer = self._tokenizer(language)
        decoded = decoder.decode(
            encoded[0],
            self._prompt(language, request.hot_words),
            max_new_tokens(duration_s),
            tokenizer.encode(f" {request.draft}") if request.draft else (),
        )
        return _Hypothesis(
            cut_loops(self._text(decoded.token_ids), duration_s),
            decoded.token_ids,
            decoded.log_probability,
            decoder.no_speech_probability(decoded),
        )

    def _hypothesis(
        self, output: ctranslate2.models.WhisperGenerationResult, duration_s: float
    ) -> _Hypothesis:
        texts = [cut_loops(self._text(ids), duration_s) for ids in output.sequences_ids]
        totals = [
            score * (len(ids) + 1)  # scores are means over the tokens and the end mark
            for score, ids in zip(output.scores, output.sequences_ids, strict=True)
        ]
        alternatives = tuple(
            text
            for text, total in zip(texts[1:], totals[1:], strict=True)
            if total > totals[0] - MAX_ALTERNATIVE_GAP
            and normal_form(text) not in ("", normal_form(texts[0]))
        )
        return _Hypothesis(
            texts[0],
            tuple(output.sequences_ids[0]),
            output.scores[0],
            output.no_speech_prob,
            alternatives,
        )

    def _result(
        self, request: DecodeRequest, encoded: Encoded, best: _Hypothesis, language: str | None
    ) -> DecodeResult:
        threshold = self._second_opinion_below
        is_doubtful = threshold is not None and best.log_probability < threshold
        if is_doubtful and request.kind != "partial" and self.uses_graft:
            best = self._second_opinion(request, best, language)
        is_dropped = self._gates.drops(best.text, best.log_probability, best.no_speech_probability)
        result = DecodeResult(
            utterance=request.utterance,
            revision=request.revision,
            text="" if is_dropped else best.text,
            log_probability=best.log_probability,
            no_speech_probability=best.no_speech_probability,
            language=language,
            alternatives=() if is_dropped else best.alternatives,
        )
        if request.word_times and result.text:
            return replace(result, words=self._align(request, encoded, best, language))
        return result

    def _second_opinion(
        self, request: DecodeRequest, best: _Hypothesis, language: str | None
    ) -> _Hypothesis:
        """The full window with a wide beam: slower by far, right more often at low scores."""
        (output,) = self._model.generate(
            ctranslate2.StorageView.from_array(self._encode_full(request.samples)),
            [self._prompt(language, request.hot_words)],
            beam_size=FULL_WINDOW_BEAMS,
            return_scores=True,
            return_no_speech_prob=True,
        )
        full = self._hypothesis(output, len(request.samples) / SAMPLE_RATE_HZ)
        return full if full.log_probability > best.log_probability else best

    # ---- words

    def _align(
        self,
        request: DecodeRequest,
        encoded: Encoded,
        best: _Hypothesis,
        language: str | None,
    ) -> tuple[Word, ...]:
        """Times and probability per word, by cross-attention alignment."""
        tokenizer = self._tokenizer(language)
        token_ids = [token for token in best.token_ids if token < tokenizer.eot]
        num_frames = len(request.samples) * FRAMES_PER_S // SAMPLE_RATE_HZ
        encoded = self._grafted([encoded])
        (alignment,) = self._model.align(
            ctranslate2.StorageView.from_array(np.ascontiguousarray(encoded)),
            tokenizer.sot_sequence,
            [token_ids],
            # real audio only, else the last word never ends
            [min(num_frames, 2 * encoded.shape[1])],
        )
        return place_words(
            tokenizer.split_to_word_tokens(token_ids),
            alignment.alignments,
            alignment.text_token_probs,
            request.start_s,
        )

    # ---- tokens

    def _tokenizer(self, language: str | None) -> Tokenizer:
        try:
            return Tokenizer(
                self._hf_tokenizer, self.is_multilingual, "transcribe", language or "en"
            )
        except ValueError as error:
            raise UnsupportedLanguage(language or "en") from error

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self._plain_tokenizer.decode(list(token_ids))
        return text.strip()

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        return self._tokenizer("en")

    def _prompt(self, language: str | None, hot_words: str | None) -> list[int]:
        tokenizer = self._tokenizer(language)
        prompt = [*tokenizer.sot_sequence, tokenizer.no_timestamps]
        if not hot_words:
            return prompt
        hints = tokenizer.encode(f" Glossary: {hot_words.strip()}.")[:MAX_PROMPT_TOKENS]
        return [tokenizer.sot_prev, *hints, *prompt]

    def _detect(self, encoded: Encoded) -> str:
        (ranking,) = self._model.detect_language(
            ctranslate2.StorageView.from_array(np.ascontiguousarray(self._grafted([encoded])))
        )
        return str(ranking[0][0]).strip("<|>")

    # ---- the graft

    def _make_graft_table(self) -> Encoded | None:
        """[1, FULL_FRAMES, D] encoder output of padding, or None if this model does not take to it.

        Padding that follows speech looks different to the decoder than pure silence: rows of the
        former make it stop where the latter sometimes make it repeat itself (docs/asr.md), so they
        come from a clear question and the padding after it, except where the question itself was.

        Self-check: that question must read the same with the graft as in the full window.
        """
        clip = read_file(SELF_CHECK_CLIP)
        request = DecodeRequest(0, 0, clip, 0.0, "partial", language="en")
        whole = self._encode_full(clip)
        (reference,) = self._generate([request], [whole], "en")
        silent = self._encode_full(np.zeros(0, dtype=np.float32))
        spoken = len(clip) * ENCODER_FRAMES_PER_S // SAMPLE_RATE_HZ + CLIP_MARGIN_FRAMES
        self._graft_table = np.concatenate([silent[:, :spoken], whole[:, spoken:]], axis=1)
        (grafted,) = self._generate([request], [self._encode(clip)], "en")
        if normal_form(grafted.text) == normal_form(reference.text):
            return self._graft_table
        logger.warning("graft self-check failed; every decode uses the full 30 s window")
        return None

    # ---- the text decoder

    def _make_text_decoder(self, path: Path, num_threads: int) -> GraftedDecoder | None:
        """None where the model is not built as expected.

        Self-check: the question must read as CTranslate2 reads it.
        """
        assert self._graft_table is not None
        request = DecodeRequest(0, 0, read_file(SELF_CHECK_CLIP), 0.0, "partial", language="en")
        encoded = self._encode(request.samples)
        (reference,) = self._generate([request], [encoded], "en")
        try:
            weights = read_weights(path / "model.bin")
            decoder = GraftedDecoder(
                TextDecoder(weights, num_threads),
                self._graft_table[0],
                self._token_rules(path),
                start=self._plain_tokenizer.sot,
                no_speech=self._plain_tokenizer.no_speech,
            )
        except (KeyError, ModelBroken) as error:
            logger.warning("CTranslate2 decodes the text, which takes longer: %s", error)
            return None
        checked = self._check_draft(decoder, request, encoded, "en")
        if normal_form(checked.text) == normal_form(reference.text):
            return decoder
        logger.warning("text decoder self-check failed; CTranslate2 decodes, which takes longer")
        return None

    def _token_rules(self, path: Path) -> TokenRules:
        config = json.loads((path / "config.json").read_text())
        return TokenRules(
            end=self._plain_tokenizer.eot,
            never=config["suppress_ids"],
            never_first=config["suppress_ids_begin"],
            repetition_penalty=REPETITION_PENALTY,
        )


def _settings_key(request: DecodeRequest) -> tuple[str, str, int]:
    return (request.language or "", request.hot_words or "", request.num_hypotheses)


def _padded(samples: Samples, min_s: float) -> Samples:
    missing = round(min_s * SAMPLE_RATE_HZ) - len(samples)
    return np.pad(samples, (0, missing)) if missing > 0 else samples


def known_models() -> dict[str, str]:
    """Repositories of the Hugging Face hub by faster-whisper's names for their models."""
    return dict(_MODELS)


def _checked_device(device: str, compute_type: str) -> str:
    """Where "auto" is, if the recogniser can run there and compute like that."""
    if device == "auto":
        device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
    try:
        supported = set(ctranslate2.get_supported_compute_types(device))
    except (RuntimeError, ValueError) as error:
        raise DeviceUnavailable(device, str(error)) from error
    if compute_type not in supported:
        raise UnsupportedComputeType(compute_type, device, supported)
    return device
