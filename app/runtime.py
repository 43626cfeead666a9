"""What is loaded once and shared by all sessions, and how a session is made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from app import messages as m
from app.config import AppConfig
from app.conversation import Conversation
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
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.events import OnEvent, SuffixPolicy
from llm_engine.model import load_model
from llm_engine.tokenizer import Tokenizer
from tts.hibari import HibariSynthesizer
from tts.synthesizer import Synthesizer, TextOnly

LONG_SUFFIX_TOKENS = 48
END_PROBABILITY_GRACE_MS = 60  # how long the end of a turn waits for the reply model's evidence


class WarmDecoder(Decoder, Protocol):
    """A recogniser that can be run once ahead of the first caller."""

    def warm_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """Loaded models. Sessions take what they share from here; shells own the threads."""

    config: AppConfig
    engine: Engine
    template: ChatTemplate
    recogniser: WarmDecoder
    smart_turn: TurnChecker
    synthesizer: Synthesizer
    prompt: PromptSpec

    @classmethod
    def load(cls, config: AppConfig, clock: Callable[[], float] = time.perf_counter) -> Runtime:
        """Load all models of `config`. Raises ModelError, EngineError or PromptFileError."""
        prompt = load_prompt(config.prompt) if config.prompt else default_prompt()
        with ThreadPoolExecutor(2) as pool:  # two cores halve what a start takes
            mind = pool.submit(_load_mind, config, clock)
            ears = pool.submit(_load_ears, config)
            engine, template = mind.result()
            recogniser, smart_turn = ears.result()
        return cls(
            config=config,
            engine=engine,
            template=template,
            recogniser=recogniser,
            smart_turn=smart_turn,
            synthesizer=HibariSynthesizer(num_threads=config.threads.voice)
            if config.speech == "hibari"
            else TextOnly(),
            prompt=prompt,
        )

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

    def warm_up(self) -> None:
        """Make the first call as fast as the tenth: run every model once."""
        with ThreadPoolExecutor(2) as pool:
            engine = pool.submit(self.engine.warm_up)
            self.recogniser.warm_up()
            self.smart_turn.probability(np.zeros(SAMPLE_RATE_HZ, np.float32))
            self.synthesizer.warm_up()
            engine.result()

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
        max_prompt_tokens = self.engine.max_prompt_tokens - settings.engine.sampling.max_tokens
        return Session(
            session_id,
            settings=settings,
            conversation=Conversation(self.template, self.prompt, max_prompt_tokens),
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
    path = resolve_llm(config.llm)
    tokenizer = Tokenizer(path)
    model = load_model(path, config.dtype, num_threads=config.threads.engine)
    return Engine(model, tokenizer, EngineConfig(), clock), ChatTemplate(tokenizer)


def _load_ears(config: AppConfig) -> tuple[Recogniser, SmartTurn]:
    recogniser = Recogniser(
        resolve_asr(config.asr),
        num_threads=config.threads.recogniser,
        num_workers=config.threads.recogniser_workers,
    )
    return recogniser, SmartTurn(resolve_smart_turn(None), config.threads.turn_check)
