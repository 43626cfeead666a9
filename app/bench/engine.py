"""`bench engine`: what the incremental engine saves, beside full re-prefill and what peers take.

Figures are medians of one run on an idle engine driven inline; first-token times count from the
commit. The streams are partial transcripts recorded by scripts/record_partials.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from threading import Event
from typing import Any, cast

from app.bench.arguments import count
from app.bench.engine_peers import installed_peers, peer_figures
from app.model_store import resolve_llm
from llm_engine.chat import ChatTemplate
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig, KVDtype
from llm_engine.events import (
    EngineEvent,
    ReplyDelta,
    ReplyDone,
    SamplingParams,
    SessionConfig,
    SuffixPolicy,
    TurnStats,
)
from llm_engine.model import load_model
from llm_engine.prompt import Snapshot
from llm_engine.tokenizer import Tokenizer
from llm_engine.weights import WeightDtype

SYSTEM = "You are a helpful voice assistant. Answer in one or two short sentences."
FILLER = "The museum by the harbour shows ships, maps and tools of the people who built the town. "
SENTENCES = (
    "How old is the Brooklyn Bridge and who built it",
    "Could you tell me what the weather is like in Paris tomorrow",
    "I would like to book a table for four people tonight",
    "What is the tallest mountain in Europe and how high is it",
    "Please explain in simple words how a sailing boat moves against the wind",
    "Which train should I take to get to the airport before noon",
    "Tell me a short story about a dog that found its way home",
    "How do I make tomato soup without cream for six people",
)
NUM_OTHERS = 8
IDLE_S = 0.15  # without a step: all drafts are made
TIMEOUT_S = 60.0
RECORDED = Path(__file__).parent / "partials.json"  # by scripts/record_partials.py


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llm", default=None, help="model: an id, a path, a hub id")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, int8 or int4")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--kv-dtype", choices=("float", "int8"), default="float")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument(
        "--no-peers", action="store_true", help="leave transformers and llama.cpp out"
    )


def run_command(arguments: argparse.Namespace) -> dict[str, Any]:
    return run(
        resolve_llm(arguments.llm),
        dtype=arguments.dtype,
        device=arguments.device,
        kv_dtype=arguments.kv_dtype,
        num_threads=arguments.threads,
        repeats=arguments.repeats,
        with_peers=not arguments.no_peers,
    )


def run(
    path: Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    kv_dtype: KVDtype = "float",
    num_threads: int = 2,
    repeats: int = 5,
    with_peers: bool = True,
) -> dict[str, Any]:
    """All scenarios of docs/engine.md. Raises ModelError when the model cannot be loaded."""
    tokenizer = Tokenizer(path)
    model = load_model(path, cast(WeightDtype, dtype), device, num_threads)
    engine = Engine(model, tokenizer, EngineConfig(kv_dtype=kv_dtype))
    engine.warm_up()
    bench = EngineBench(engine, tokenizer, repeats)
    figures: dict[str, Any] = {"model": path.name, "dtype": dtype, "num_threads": num_threads}
    figures |= {"device": model.device.type, "kv_dtype": kv_dtype}
    figures["commit_ready_ms"] = round(bench.commit_ready_ms(), 3)
    figures |= bench.tail_revision()
    figures |= bench.middle_edit()
    figures |= bench.shared_prefix()
    figures |= peer_figures({"full_prefill": bench}, bench.prompts_of_scenarios())
    figures |= bench.partial_streams(recorded_turns())
    figures |= bench.first_token_under_load()
    if with_peers:
        peers = installed_peers(path, model, num_threads)
        figures |= peer_figures(peers, bench.prompts_of_scenarios())
    stats = engine.stats()
    figures["step_fixed_ms"] = round(stats.step_fixed_s * 1e3, 2)
    figures["step_per_token_ms"] = round(stats.step_per_token_s * 1e3, 3)
    return figures


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """What a caller had said by a turn's transcripts, in order, and the final one."""

    partials: tuple[str, ...]
    final: str

    def before_the_last_words(self) -> tuple[str, ...]:
        """The partials from before the final words were known."""
        return tuple(text for text in self.partials if text != self.final)


def recorded_turns() -> list[RecordedTurn]:
    """The streams that come with the project."""
    turns = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [RecordedTurn(tuple(turn["partials"]), turn["final"]) for turn in turns]


@dataclass
class Call:
    """One session of the bench."""

    engine: Engine
    session: str = ""
    first_delta_s: float | None = None
    stats: TurnStats | None = None
    first_delta_came: Event = field(default_factory=Event)
    done: Event = field(default_factory=Event)

    @classmethod
    def open(cls, engine: Engine, config: SessionConfig) -> Call:
        call = cls(engine)
        call.session = engine.open(config, call._on_event)
        return call

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, ReplyDelta) and self.first_delta_s is None:
            self.first_delta_s = time.perf_counter()
            self.first_delta_came.set()
        elif isinstance(event, ReplyDone):
            self.stats = event.stats
            self.done.set()

    def first_token_ms(self, snapshot: Snapshot) -> float:
        """Commit, and step until the first token is delivered."""
        self.first_delta_s, self.stats = None, None
        begin = time.perf_counter()
        self.engine.commit(self.session, snapshot)
        while self.first_delta_s is None and self.stats is None:
            self.engine.step()
        return ((self.first_delta_s or time.perf_counter()) - begin) * 1e3

    def finish(self) -> TurnStats:
        while self.stats is None:
            self.engine.step()
        return self.stats


@dataclass
class EngineBench:
    """The scenarios, on one engine."""

    engine: Engine
    tokenizer: Tokenizer
    repeats: int
    config: SessionConfig = field(
        default_factory=lambda: SessionConfig(sampling=SamplingParams(max_tokens=32))
    )
    _num_scopes: int = 0
    _revision: int = 0
    _random: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        self._template = ChatTemplate(self.tokenizer)

    # ---- prompts

    def chat(self, words: str, system: str = SYSTEM, after: str = "") -> Snapshot:
        self._revision += 1
        return Snapshot(self._revision, self._template.segments(system, (), words, after=after))

    def long_prompt(self, number: int, ending: str = "today") -> Snapshot:
        """About 300 tokens, the caller's words at their end."""
        return self.chat(f"{_sentence(number)} {ending}", self._text(260))

    def edited_prompt(self, number: int, ending: str = "") -> Snapshot:
        """About 300 tokens behind the caller's words."""
        return self.chat(_sentence(number) + ending, after="\n\n" + self._text(300))

    def with_long_system(self, number: int) -> Snapshot:
        """About 500 tokens before the caller's words."""
        return self.chat(_sentence(number), self._text(500))

    def prompts_of_scenarios(self) -> dict[str, list[tuple[Snapshot, Snapshot]]]:
        """What each scenario below has in the cache, and what it then asks for, for peers."""
        makers: dict[str, tuple[Callable[[int], Snapshot], Callable[[int], Snapshot]]] = {
            "commit_ready": (lambda n: self.chat(_sentence(n)), lambda n: self.chat(_sentence(n))),
            "tail_revision": (self.long_prompt, lambda n: self.long_prompt(n, "tonight")),
            "middle_edit": (self.edited_prompt, lambda n: self.edited_prompt(n, " now")),
            "prefix_second": (self.with_long_system, lambda n: self.with_long_system(n + 1)),
        }
        return {
            name: [(a(n), b(n)) for n in range(self.repeats)] for name, (a, b) in makers.items()
        }

    def _text(self, num_tokens: int) -> str:
        length = len(self.tokenizer.encode(FILLER))
        return SYSTEM + " " + FILLER * round(num_tokens / length)

    def _call(self, **changes: Any) -> Call:
        """A session that shares nothing with any before it."""
        self._num_scopes += 1
        config = replace(self.config, cache_scope=f"bench-{self._num_scopes}")
        return Call.open(self.engine, replace(config, **changes))

    def _settle(self) -> None:
        while self.engine.step() is not None:
            pass

    def _done(self, *calls: Call) -> None:
        for call in calls:
            self.engine.close(call.session)
        self._settle()

    def first_token_ms(self, before: Snapshot, after: Snapshot) -> float:
        """As a peer of itself: this engine, with nothing kept of `before` or any other prompt."""
        call = self._call()
        took_ms = call.first_token_ms(after)
        self._done(call)
        return took_ms

    # ---- scenarios

    def commit_ready_ms(self) -> float:
        """The final prompt equals the last snapshot: commit to first token."""
        times = []
        for number in range(self.repeats):
            call = self._call()
            snapshot = self.chat(_sentence(number))
            self.engine.update(call.session, snapshot)
            self._settle()
            times.append(call.first_token_ms(snapshot))
            self._done(call)
        return median(times)

    def tail_revision(self) -> dict[str, float]:
        """The last word of a 300-token prompt is revised at commit, against computing it all."""
        revised, full = [], []
        for number in range(self.repeats):
            call = self._call()
            self.engine.update(call.session, self.long_prompt(number))
            self._settle()
            revised.append(call.first_token_ms(self.long_prompt(number, "tonight")))
            fresh = self._call()
            full.append(fresh.first_token_ms(self.long_prompt(number, "tonight")))
            self._done(call, fresh)
        return {
            "tail_revision_ms": round(median(revised), 1),
            "full_prefill_ms": round(median(full), 1),
            "tail_revision_speedup": round(median(full) / median(revised), 2),
        }

    def middle_edit(self) -> dict[str, float]:
        """A word is added before a suffix of 300 tokens; the same commit under both policies."""
        times: dict[SuffixPolicy, list[float]] = {}
        for policy in (SuffixPolicy.ROTATE, SuffixPolicy.RECOMPUTE):
            times[policy] = []
            for number in range(self.repeats):
                call = self._call(suffix_policy=policy, draft_policy=policy)
                self.engine.update(call.session, self.edited_prompt(number))
                self._settle()
                times[policy].append(call.first_token_ms(self.edited_prompt(number, " now")))
                self._done(call)
        rotate, recompute = (
            median(times[p]) for p in (SuffixPolicy.ROTATE, SuffixPolicy.RECOMPUTE)
        )
        return {
            "middle_rotate_ms": round(rotate, 1),
            "middle_recompute_ms": round(recompute, 1),
            "middle_rotate_speedup": round(recompute / rotate, 2),
        }

    def shared_prefix(self) -> dict[str, float]:
        """Two sessions with the same system prompt of 500 tokens: the second's first token."""
        first, second = [], []
        for number in range(self.repeats):
            a = self._call()
            b = Call.open(
                self.engine, replace(self.config, cache_scope=f"bench-{self._num_scopes}")
            )
            first.append(a.first_token_ms(self.with_long_system(number)))
            a.finish()
            second.append(b.first_token_ms(self.with_long_system(number + 1)))
            self._done(a, b)
        return {
            "prefix_first_ms": round(median(first), 1),
            "prefix_second_ms": round(median(second), 1),
            "prefix_share_ratio": round(median(second) / median(first), 3),
        }

    def partial_streams(self, turns: Sequence[RecordedTurn]) -> dict[str, float]:
        """Recorded turns as they came; and cut before the last partial, so that every draft breaks,
        with and without the n-gram pool."""
        whole = [self._stream(turn.partials, turn, use_ngram_pool=False) for turn in turns]
        broken = [(turn.before_the_last_words(), turn) for turn in turns]
        with_pool = [self._stream(*pair, use_ngram_pool=True) for pair in broken]
        without = [self._stream(*pair, use_ngram_pool=False) for pair in broken]
        return {
            "recorded_turns": len(turns),
            "tokens_per_pass": _ratio(whole, "reply_tokens", "num_passes"),
            "drafted_tokens": sum(stats.drafted_tokens for stats in whole),
            "accepted_tokens": sum(stats.accepted_tokens for stats in whole),
            "broken_tokens_per_pass": _ratio(without, "reply_tokens", "num_passes"),
            "commit_passes_per_token": _ratio(
                with_pool, "passes_after_commit", "tokens_after_commit"
            ),
            "commit_passes_per_token_without_pool": _ratio(
                without, "passes_after_commit", "tokens_after_commit"
            ),
        }

    def _stream(
        self, partials: Sequence[str], turn: RecordedTurn, *, use_ngram_pool: bool
    ) -> TurnStats:
        call = self._call(use_ngram_pool=use_ngram_pool)
        for text in partials:
            self.engine.update(call.session, self.chat(text))
            self._settle()
        call.first_token_ms(self.chat(turn.final))
        stats = call.finish()
        self._done(call)
        return stats

    def first_token_under_load(self) -> dict[str, float]:
        """Commit to first token while eight other sessions draft, and while none does, on the
        engine's own thread. The last scenario: it ends the engine."""
        self.engine.start()
        try:
            alone = [self._committed_first_token(()) for _ in range(4 * self.repeats)]
            others = [self._call(max_turn_draft_tokens=10**6) for _ in range(NUM_OTHERS)]
            loaded = [self._committed_first_token(others) for _ in range(4 * self.repeats)]
            for other in others:
                self.engine.close(other.session)
        finally:
            self.engine.stop()
        self._settle()
        return {
            "first_token_alone_p90_ms": round(_p90(alone), 1),
            "first_token_beside_8_p90_ms": round(_p90(loaded), 1),
            "load_penalty_p90_ms": round(_p90(loaded) - _p90(alone), 1),
            "longest_commit_wait_ms": round(self.engine.stats().longest_commit_wait_s * 1e3, 1),
        }

    def _committed_first_token(self, others: Sequence[Call]) -> float:
        """The session has drafted, the others have just begun to; its commit, whose last word is
        new, comes at any moment of whatever step is under way."""
        call = self._call()
        self.engine.update(call.session, self.chat(SENTENCES[0]))
        self._wait_until_idle()
        for number, other in enumerate(others):
            words = f"{_sentence(number)} {self._revision}"
            self.engine.update(other.session, self.chat(words))
        time.sleep(self._random.uniform(0.02, 0.2))
        begin = time.perf_counter()
        self.engine.commit(call.session, self.chat(SENTENCES[0] + " today"))
        assert call.first_delta_came.wait(TIMEOUT_S), "no reply came"
        assert call.first_delta_s is not None
        call.done.wait(TIMEOUT_S)
        self.engine.close(call.session)
        return (call.first_delta_s - begin) * 1e3

    def _wait_until_idle(self) -> None:
        """Until the engine's thread has found nothing to do for a while."""
        before = -1
        while before != (now := self.engine.stats().num_steps):
            before = now
            time.sleep(IDLE_S)


def _sentence(number: int) -> str:
    return SENTENCES[number % len(SENTENCES)]


def _ratio(turns: Sequence[TurnStats], over: str, under: str) -> float:
    def total(name: str) -> float:
        return float(sum(getattr(stats, name) for stats in turns))

    return round(total(over) / max(1.0, total(under)), 3)


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10)[-1]
