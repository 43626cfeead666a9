"""What is loaded once and shared by all sessions, and how a session is made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app import messages as m
from app.config import AppConfig
from app.conversation import Conversation, longest_reply
from app.errors import BadConfig
from app.model_cache import default_cache_dir
from app.model_store import resolve_asr, resolve_llm, resolve_smart_turn
from app.ports import Ears, Voice
from app.prompt_spec import PromptSpec, default_prompt, load_prompt
from app.session import Session
from app.session_settings import SessionSettings
from asr.audio import SAMPLE_RATE_HZ
from asr.listener import Listener
from asr.settings import ListenerSettings
from asr.smart_turn import SmartTurn
from asr.vad import SileroVad
from asr.whisper import Recogniser
from asr.worker import Decoder, TurnChecker
from llm_engine.chat import ChatTemplate
from llm_engine.engine_config import MAX_SESSIONS, ROWS_PER_SESSION, EngineConfig
from llm_engine.events import OnEvent, SuffixPolicy
from llm_engine.tokenizer import Tokenizer
from tts.hibari import HibariSynthesizer
from tts.synthesizer import Synthesizer, TextOnly

if TYPE_CHECKING:
    from llm_engine.engine import Engine

LONG_SUFFIX_TOKENS = 48
END_PROBABILITY_GRACE_MS = 100  # how long the end of a turn waits for the reply model's evidence


@dataclass(frozen=True, slots=True)
class Runtime:
    """Loaded models. Sessions take what they share from here; shells own the threads."""

    config: AppConfig
    engine: Engine
    template: ChatTemplate
    recogniser: Decoder
    smart_turn: TurnChecker
    synthesizer: Synthesizer
    prompt: PromptSpec

    @classmethod
    def load(cls, config: AppConfig, clock: Callable[[], float] = time.perf_counter) -> Runtime:
        """Load all models of `config` and run each once: the first call is as fast as the tenth.

        Raises ModelError, AsrError, EngineError, PromptFileInvalid or BadConfig.
        """
        prompt = load_prompt(config.prompt) if config.prompt else default_prompt()
        with ThreadPoolExecutor(2) as pool:  # two cores halve what a start takes
            mind = pool.submit(_load_mind, config, clock)
            ears = pool.submit(_load_ears, config)
            voice = pool.submit(_load_voice, config)  # when the first of the others is there
            engine, template = mind.result()
            _check_lengths(config, prompt, engine, template)
            recogniser, smart_turn = ears.result()
            synthesizer = voice.result()
        return cls(config, engine, template, recogniser, smart_turn, synthesizer, prompt)

    @property
    def languages(self) -> tuple[str, ...]:
        """That callers' speech can be said to be in; empty: not known."""
        return self.recogniser.languages if isinstance(self.recogniser, Recogniser) else ()

    @property
    def draft_policy(self) -> SuffixPolicy:
        """Where long content follows the caller's words: approximate while they speak, exact
        from the pause on. Else exact throughout, which costs nothing."""
        segments = self.template.segments(
            self.prompt.system, (), "x", before=self.prompt.before, after=self.prompt.after
        )
        num_suffix_tokens = sum(len(s.token_ids) for s in segments if s.role == "suffix")
        is_long = num_suffix_tokens >= LONG_SUFFIX_TOKENS
        return SuffixPolicy.ROTATE if is_long else SuffixPolicy.RECOMPUTE

    def new_session(
        self,
        session_id: str,
        settings: SessionSettings,
        *,
        ears: Ears,
        voice: Voice,
        emit: Callable[[m.ServerEvent], None],
        on_thought: OnEvent,
    ) -> Session:
        """A session on the shared models, whose workers are reached through the given ports."""
        return Session(
            session_id,
            settings=settings,
            conversation=Conversation(
                self.template,
                self.prompt,
                self.engine.max_prompt_tokens,
                reply_tokens=settings.engine.sampling.max_tokens,
            ),
            listener=Listener(
                ListenerSettings(end_probability_grace_ms=END_PROBABILITY_GRACE_MS), SileroVad()
            ),
            ears=ears,
            engine=self.engine,
            voice=voice,
            sample_rate_hz=self.synthesizer.sample_rate_hz,
            emit=emit,
            on_thought=on_thought,
        )


def _load_mind(config: AppConfig, clock: Callable[[], float]) -> tuple[Engine, ChatTemplate]:
    # Torch takes half as long to import as everything else to load: it comes in beside the ears.
    from llm_engine.engine import Engine
    from llm_engine.model import load_model

    path = resolve_llm(config.llm)
    tokenizer = Tokenizer(path)
    model = load_model(path, config.dtype, config.device, config.threads.engine)
    # One more than the app lets in: new sampling opens a session before it closes the old one.
    num_sessions = config.max_sessions + 1
    limits = EngineConfig(
        max_sessions=num_sessions,
        num_rows=max(MAX_SESSIONS, num_sessions) * ROWS_PER_SESSION,
        kv_dtype=config.kv_dtype,
    )
    engine = Engine(model, tokenizer, limits, clock)
    engine.warm_up()
    return engine, ChatTemplate(tokenizer)


def _check_lengths(
    config: AppConfig, prompt: PromptSpec, engine: Engine, template: ChatTemplate
) -> None:
    most = longest_reply(template, prompt, engine.max_prompt_tokens)
    if most < 1:
        limit = engine.max_prompt_tokens * 3 // 4
        raise BadConfig([f"prompt={config.prompt!r}: it may have {limit} tokens at most"])
    if config.max_reply_tokens > most:
        raise BadConfig(
            [f"max_reply_tokens={config.max_reply_tokens}: beside the prompt {most} at most fit"]
        )


def _load_ears(config: AppConfig) -> tuple[Recogniser, SmartTurn]:
    recogniser = Recogniser(
        resolve_asr(config.asr),
        device=config.asr_device,
        compute_type=config.asr_compute_type,
        num_threads=config.threads.recogniser,
        num_workers=config.threads.recogniser_workers,
        second_opinion_below=config.second_opinion_below,
        cache_folder=default_cache_dir() / ".derived",
    )
    recogniser.warm_up()
    smart_turn = SmartTurn(resolve_smart_turn(None), config.threads.turn_check)
    smart_turn.probability(np.zeros(SAMPLE_RATE_HZ, np.float32))
    return recogniser, smart_turn


def _load_voice(config: AppConfig) -> Synthesizer:
    if config.speech != "hibari":
        return TextOnly()
    synthesizer = HibariSynthesizer(num_threads=config.threads.voice)
    synthesizer.warm_up()
    return synthesizer
