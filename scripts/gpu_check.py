"""Check and time the kernels and the engine on a machine with a CUDA device.

    python3 scripts/gpu_check.py [--json FILE] [--quick] [--only checks,engine,kernels,models]

Uses that machine's own torch and triton; the lives of sessions need `tokenizers`, too. Exit code 0:
every check passed; 1: one failed; 3: there is no CUDA device. Correctness is the code of
tests/kernels/checks.py: float64 references, fresh inputs, outputs allocated as NaN; and random
lives of sessions, compared with the CPU. These run in many processes, for compiling takes most of
the time. Times are medians with the L2 cache cleared before each run, beside what the measured copy
bandwidth or matmul rate would allow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # kernels are compiled here
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
from rich.console import Console
from rich.table import Table

from kernels.kv import KVArena
from kernels.linear import DenseWeight, LinearWeight, linear, quantise_int4, quantise_int8
from kernels.rms_norm import rms_norm
from kernels.rope import rope_and_write_kv
from kernels.rope_shift import rope_shift
from kernels.sample import TOP_P_OFF, SampleParams, sample_and_verify
from kernels.segment_attention import AttentionTable, segment_attention
from kernels.swiglu import swiglu
from llm_engine.batch import Batch, ExtentView
from llm_engine.config import ModelConfig
from llm_engine.cuda_graphs import StepGraphs
from llm_engine.events import SamplingParams, SuffixPolicy
from llm_engine.fast_pass import FastPass
from llm_engine.model import Model
from llm_engine.random_model import random_model
from llm_engine.weights import LayerWeights, Weights
from tests.kernels import checks

NO_DEVICE = 3
DEVICE = "cuda"
FLOAT, BRAIN, HALF, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
WANTED_SHARE = 0.8  # of the ceiling, for kernels that are bound by memory
WANTED_DECODE_SHARE = 0.7  # 1B shape in bfloat16, of its bandwidth floor, with graphs
PHASES = ("checks", "engine", "kernels", "models")


@dataclass
class Report:
    """What was found; `failures` decides the exit code."""

    machine: dict[str, str] = field(default_factory=dict)
    checks: int = 0
    replies: int = 0
    ties: int = 0
    failures: list[str] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)
    phase_s: dict[str, float] = field(default_factory=dict)


def correctness() -> Iterator[tuple[str, Callable[[], None]]]:
    """Named checks, each callable once."""
    for dtype in (FLOAT, BRAIN, HALF):
        for num_tokens, hidden in ((1, 64), (63, 100), (257, 4096), (2, 8192)):
            norm = partial(checks.check_rms_norm, DEVICE, num_tokens, hidden, dtype)
            yield f"rms_norm {num_tokens}x{hidden} {dtype}", partial(norm, True)
            yield f"rms_norm {num_tokens}x{hidden} {dtype} plain", partial(norm, False)
        for num_tokens, inner in ((1, 1), (63, 1025), (257, 14336)):
            run = partial(checks.check_swiglu, DEVICE, num_tokens, inner, dtype)
            yield f"swiglu {num_tokens}x{inner} {dtype}", run
        for kv_dtype in (dtype, INT8):
            for heads in ((1, 1, 2), (6, 2, 40), (32, 8, 128)):
                run = partial(checks.check_rope, DEVICE, heads, dtype, kv_dtype)
                yield f"rope {heads} {dtype} rows {kv_dtype}", run
            yield (
                f"rope_shift {kv_dtype}",
                partial(checks.check_rope_shift, DEVICE, 8, 128, kv_dtype),
            )
            yield from attention_checks(dtype, kv_dtype)
        for bits in (0, 8, 4):
            for sizes in LINEAR_SIZES:
                run = partial(checks.check_linear, DEVICE, sizes, dtype, bits, has_bias=True)
                yield f"linear {bits} bits {sizes} {dtype}", run
    for vocab in (1, 5, 2500, 49152, 128256):
        yield f"sample {vocab}", partial(checks.check_sample, DEVICE, vocab)
        yield f"sample greedy {vocab}", partial(checks.check_sample, DEVICE, vocab, is_greedy=True)
    yield "rows beyond int32", partial(checks.check_rows_beyond_int32, DEVICE)
    yield "shift beyond int32", partial(checks.check_shift_beyond_int32, DEVICE)
    for kv_dtype in (BRAIN, INT8):
        many = partial(checks.check_attention, DEVICE, many_decode(8192), (32, 8, 128), BRAIN)
        yield f"attention decode 16 x 8192 rows {kv_dtype}", partial(many, kv_dtype)


LINEAR_SIZES = (
    (1, 1, 32),
    (1, 3072, 2048),
    (1, 257, 8192),
    (5, 33, 288),
    (8, 9000, 4096),
    (16, 4096, 4096),
    (200, 1000, 1536),
)


def many_decode(context: int) -> checks.AttentionCase:
    """16 sequences of `context` rows each, one token of each."""
    spans = tuple((checks.Span(s * context, context, 0),) for s in range(16))
    return checks.AttentionCase(16 * context, spans, ((context - 1,),) * 16)


def attention_checks(
    dtype: torch.dtype, kv_dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each configuration is compiled (a second or so), so only bfloat16 sees all of them."""
    cases = {"mixed": checks.MIXED, "verify": checks.VERIFY, "long": checks.LONG_DECODE}
    every = (
        (1, 40, None),
        (3, 64, None),
        (4, 128, None),
        (8, 128, None),
        (4, 64, 9),
        (1, 128, 300),
    )
    for group, head_dim, window in every if dtype == BRAIN else ((3, 64, 9),):
        heads = (2 * group, 2, head_dim)
        for name, case in cases.items():
            run = partial(checks.check_attention, DEVICE, case, heads, dtype, kv_dtype, window)
            yield f"attention {name} {heads} {dtype} rows {kv_dtype} window {window}", run


def attempt(name: str, check: Callable[[], Any]) -> str | None:
    """What went wrong, if anything did: any failure is a finding, and the rest still runs."""
    try:
        check()
    except Exception as error:
        return f"{name}: {type(error).__name__}: {str(error)[:300]}"
    return None


def run_check(index: int) -> str | None:
    return attempt(*list(correctness())[index])


def run_checks(report: Report, pool: ProcessPoolExecutor) -> None:
    report.checks += (count := len(list(correctness())))
    # attention takes longest to compile, and lies in the middle
    order = sorted(range(count), key=lambda index: (index % 7, index))
    report.failures += filter(None, pool.map(run_check, order))


@dataclass(frozen=True)
class Life:
    """One random life of two sessions, and how they are set up."""

    family: str
    seed: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        settings = ", ".join(str(value) for value in self.settings.values())
        return f"engine {self.family} seed {self.seed} {settings}"


def lives(num_seeds: int) -> list[Life]:
    def sampled(**settings: Any) -> dict[str, Any]:
        return {"sampling": SamplingParams(max_tokens=14, **settings)}

    kinds = [(family, sampled()) for family in ("llama2", "smollm2", "mistral", "qwen3", "qwen2")]
    kinds += [("llama3", sampled(temperature=0.8, top_p=0.9))]
    kinds += [("llama2", sampled(temperature=1.2, top_k=20, min_p=0.02))]
    kinds += [("llama2", sampled(temperature=0.7, repetition_penalty=1.3))]
    for policy in (SuffixPolicy.ROTATE, SuffixPolicy.PADDED):
        kinds += [("llama2", {**sampled(), "draft_policy": policy})]
    return [Life(family, seed, kind) for seed in range(num_seeds) for family, kind in kinds]


@cache
def models_of(family: str) -> tuple[Model, Model]:
    """The same weights on the GPU and on the CPU."""
    # torch's operators are the specification; the compiled pass would take long to compile here
    with mock.patch.object(FastPass, "supports", return_value=False):
        return random_model(family, 0, device=DEVICE), random_model(family, 0)


def run_life(life: Life) -> tuple[str | None, int, int]:
    """A life on the GPU: every reply equals the CPU's but for ties; -> failure, replies, ties."""
    replies = ties = 0

    def compare() -> None:
        nonlocal replies, ties
        from tests.llm_engine.engine_rig import first_difference, make_engine
        from tests.llm_engine.histories import play, replay_commits

        on_gpu, on_cpu = models_of(life.family)
        for caller in play(make_engine(on_gpu), life.seed, 16, **life.settings):
            plain = replay_commits(make_engine(on_cpu), caller.answers, **life.settings)
            for answer, expected in zip(caller.answers, plain, strict=True):
                is_cut = answer.reason == "cancelled"
                wanted = expected.reply[: len(answer.reply)] if is_cut else expected.reply
                index, tie = first_difference(answer.reply, wanted), expected.tie_index
                assert index is None or (tie is not None and tie <= index), (
                    f"turn {answer.turn} differs at token {index}, tie at {tie}"
                )
                replies += 1
                ties += index is not None

    failure = attempt(life.name, compare)
    return failure, replies, ties


def run_lives(report: Report, pool: ProcessPoolExecutor, num_seeds: int) -> None:
    for failure, replies, ties in pool.map(run_life, lives(num_seeds)):
        report.checks += 1
        report.replies += replies
        report.ties += ties
        if failure is not None:
            report.failures.append(failure)


@cache
def cold_memory() -> torch.Tensor:
    return torch.zeros(2**28, device=DEVICE)  # 1 GiB, many times the L2 cache


def median_ms(run: Callable[[], Any], budget_s: float = 0.1) -> float:
    """Median time on the device. The cache is cleared by reading: lines to write back would cost
    the run that follows; and the host has the time of that reading to get ahead of the device.
    """
    run()
    times: list[float] = []
    started = time.monotonic()
    while len(times) < 5 or (time.monotonic() - started < budget_s and len(times) < 200):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        cold_memory().sum()
        events[0].record()
        run()
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]))
    return median(times)


def wall_ms(run: Callable[[], Any], count: int = 30) -> float:
    """Median time on the clock from a call to its end, the device being idle before."""
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return median(times) * 1e3


def measure_ceilings(report: Report) -> None:
    source = torch.randn(2**29, device=DEVICE).to(BRAIN)  # 1 GiB
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source))
    report.ceilings["copy_bytes_per_s"] = 2 * source.numel() * 2 / copy_ms * 1e3
    a, b = torch.randn(2, 8192, 8192, device=DEVICE).to(BRAIN)
    report.ceilings["matmul_flops_per_s"] = 2 * 8192**3 / median_ms(lambda: a @ b) * 1e3
    copy, matmul = report.ceilings.values()
    say(f"copy {copy / 1e12:.2f} TB/s, matmul {matmul / 1e12:.0f} TFLOP/s")


def say(text: str) -> None:
    """Progress, at once: what a run that is cut short has found is not lost."""
    print(text, flush=True)


def note_time(
    report: Report, name: str, ms: float, num_bytes: float = 0, flops: float = 0, wanted: float = 0
) -> None:
    """`share`: of the time that the ceilings allow at best."""
    floor_s = max(
        num_bytes / report.ceilings["copy_bytes_per_s"],
        flops / report.ceilings["matmul_flops_per_s"],
    )
    share = floor_s * 1e3 / ms
    report.times.append({"name": name, "ms": ms, "floor_ms": floor_s * 1e3, "share": share})
    say(f"{name:<44} {ms:8.3f} ms, floor {floor_s * 1e3:.3f}, {share:4.0%}")
    if share < wanted:
        report.failures.append(f"{name}: {share:.0%} of its ceiling, {wanted:.0%} wanted")


def time_kernels(report: Report) -> None:
    num_tokens, hidden, inner = 16384, 4096, 14336
    x, residual = torch.randn(2, num_tokens, hidden, device=DEVICE).to(BRAIN)
    weight = torch.randn(hidden, device=DEVICE).to(BRAIN)
    ms = median_ms(lambda: rms_norm(x, weight, 1e-5, residual))
    note_time(report, "rms_norm + residual", ms, 4 * x.numel() * 2, wanted=WANTED_SHARE)
    gate_up = torch.randn(num_tokens, 2 * inner, device=DEVICE).to(BRAIN)
    ms = median_ms(partial(swiglu, gate_up))
    note_time(report, "swiglu", ms, 1.5 * gate_up.numel() * 2, wanted=WANTED_SHARE)
    del gate_up
    for kv_dtype in (BRAIN, INT8):
        time_rope(report, num_tokens, kv_dtype)
    time_attention(report)
    time_products(report, hidden, inner)
    time_sampling(report)


def time_rope(report: Report, num_tokens: int, kv_dtype: torch.dtype) -> None:
    num_layers = 32
    arena = KVArena(num_layers, num_tokens, 8, 128, kv_dtype, DEVICE)
    arena.keys.random_(-99, 100)
    if arena.key_scales is not None:
        arena.key_scales.uniform_()
    q = torch.randn(num_tokens, 32, 128, device=DEVICE).to(BRAIN)
    k = torch.randn(num_tokens, 8, 128, device=DEVICE).to(BRAIN)
    cos, sin = torch.randn(2, num_tokens, 64, device=DEVICE)
    rows = torch.arange(num_tokens, device=DEVICE)
    ms = median_ms(lambda: rope_and_write_kv(q, k, k, cos, sin, rows, arena.layers[0]))
    moved = 2 * q.nbytes + 2 * k.nbytes + 2 * cos.nbytes + arena.num_bytes // num_layers
    # int8 rows are bound by exact divisions, see kernels/README.md
    wanted = WANTED_SHARE if kv_dtype == BRAIN else 0.0
    note_time(report, f"rope + KV write, rows {kv_dtype}", ms, moved, wanted=wanted)
    ms = median_ms(lambda: rope_shift(arena, 0, num_tokens, cos[0], sin[0]))
    note_time(report, f"rope shift, rows {kv_dtype}", ms, arena.num_bytes, wanted=wanted)


def time_products(report: Report, hidden: int, inner: int) -> None:
    """The largest matrices of the 8B shape: gate and up of a layer, and the head."""
    for name, num_outputs in (("gate_up", 2 * inner), ("head", 128256)):
        w = torch.randn(num_outputs, hidden, device=DEVICE)
        for bits, matrix in (
            (16, DenseWeight(w.to(BRAIN))),
            (8, quantise_int8(w)),
            (4, quantise_int4(w)),
        ):
            for count in (1, 8, 4096) if name == "gate_up" else (1, 8):
                few = torch.randn(count, hidden, device=DEVICE).to(BRAIN)
                ms = median_ms(partial(linear, few, matrix))
                moved = matrix.num_bytes + few.numel() * 2 + count * num_outputs * 2
                label = f"{name} {bits} bits, {count} tokens"
                # int8 and int4 are bound by unpacking, see kernels/README.md
                wanted = WANTED_SHARE if count < 4096 and bits == 16 else 0.0
                note_time(report, label, ms, moved, 2 * count * w.numel(), wanted)


def time_sampling(report: Report) -> None:
    for num_rows in (1, 16):
        logits = torch.randn(num_rows, 128256, device=DEVICE)
        draft = torch.full((num_rows,), -1, device=DEVICE)
        for name, top_p, is_greedy in (
            ("greedy", 1.0, True),
            ("plain", 1.0, False),
            ("top-p", 0.9, False),
        ):
            params = sampling_params(num_rows, top_p, is_greedy)
            ms = median_ms(partial(sample_and_verify, logits, draft, params))
            note_time(report, f"sample {num_rows} rows, {name}", ms, logits.numel() * 4)


def sampling_params(num_rows: int, top_p: float, is_greedy: bool) -> SampleParams:
    ones = torch.ones(num_rows, device=DEVICE)
    integers = torch.zeros(num_rows + 1, dtype=torch.int64, device=DEVICE)
    return SampleParams(
        is_greedy=is_greedy,
        temperature=ones,
        top_k=integers[1:],
        top_p=torch.full_like(integers[1:], int(top_p * TOP_P_OFF)),
        log_min_p=torch.full_like(ones, -torch.inf),
        penalty=ones,
        keys=torch.randint(0, 2**32, (num_rows, 2), device=DEVICE),
        preceding_ids=integers[:0],
        preceding_start=integers,
    )


def time_attention(report: Report) -> None:
    num_sequences, context, heads = 16, 8192, (32, 8, 128)
    num_rows = num_sequences * context
    decode = many_decode(context)
    for kv_dtype in (BRAIN, INT8):
        cache = checks.random_kv(num_rows, heads[1], heads[2], kv_dtype, DEVICE)
        q = torch.randn(num_sequences, heads[0], heads[2], device=DEVICE).to(BRAIN)
        table = decode.table(DEVICE)
        ms = median_ms(partial(segment_attention, q, cache, table, 0.1))
        moved = 2 * cache.keys.numel() * cache.keys.element_size()
        if cache.key_scales is not None:
            moved += 2 * cache.key_scales.numel() * 4
        name = f"attention decode, 16 x {context}, rows {kv_dtype}"
        # int8 rows are bound by unpacking, see kernels/README.md
        note_time(report, name, ms, moved, wanted=WANTED_SHARE if kv_dtype == BRAIN else 0.0)
    length = 4096
    table = AttentionTable.build(
        [[ExtentView(0, length, 0)]], [0, length], torch.arange(length, device=DEVICE)
    )
    cache = checks.random_kv(length, heads[1], heads[2], BRAIN, DEVICE)
    q = torch.randn(length, heads[0], heads[2], device=DEVICE).to(BRAIN)
    ms = median_ms(partial(segment_attention, q, cache, table, 0.1))
    note_time(report, f"attention prefill {length}", ms, flops=2 * length**2 * heads[0] * heads[2])


LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
SHAPES: dict[str, dict[str, Any]] = {
    "1B": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8B": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}


def big_model(shape: str, weight_dtype: str) -> Model:
    """Random weights made on the device: what is timed does not depend on their values."""
    config = ModelConfig.from_hf({**LLAMA, **SHAPES[shape], "hidden_act": "silu"})

    def matrix(num_outputs: int, num_inputs: int, is_head: bool = False) -> LinearWeight:
        w = torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=BRAIN) / num_inputs**0.5
        if weight_dtype == "bf16":
            return DenseWeight(w)
        return quantise_int8(w) if is_head else quantise_int4(w)

    hidden, inner = config.hidden_size, config.intermediate_size
    ones = torch.ones(hidden, device=DEVICE, dtype=BRAIN)
    layers = tuple(
        LayerWeights(
            input_norm=ones,
            qkv=matrix(config.query_size + 2 * config.kv_size, hidden),
            q_norm=None,
            k_norm=None,
            output=matrix(hidden, config.query_size),
            post_norm=ones,
            gate_up=matrix(2 * inner, hidden),
            down=matrix(hidden, inner),
        )
        for _ in range(config.num_layers)
    )
    head = matrix(config.vocab_size, hidden, is_head=True)
    weights = Weights(embedding=head, layers=layers, final_norm=ones, head=head)
    return Model(config, weights, BRAIN, torch.device(DEVICE))


def time_model(report: Report, shape: str, weight_dtype: str) -> None:
    model = big_model(shape, weight_dtype)
    context, chunk = 1024, 512
    arena = model.new_arena(context + 9)
    graphs = StepGraphs(model, arena, context + 8, 2 * context)
    moved = model.num_weight_bytes + arena.num_bytes
    name = f"{shape} {weight_dtype}"
    for count in (1, 8):
        step = one_sequence(count, context)
        is_wanted = shape == "1B" and weight_dtype == "bf16" and count == 1
        wanted = WANTED_DECODE_SHARE if is_wanted else 0.0
        ms = median_ms(partial(graphs.forward, step))
        note_time(report, f"{name} step of {count}, graph", ms, moved, wanted=wanted)
        ms = wall_ms(partial(graphs.forward, step))
        note_time(report, f"{name} step of {count}, graph, wall clock", ms, moved)
        plain, replayed = model.forward(step, arena), graphs.forward(step)
        assert replayed is not None
        if not torch.allclose(plain, replayed, rtol=0, atol=0.05 * float(plain.abs().max())):
            report.failures.append(f"{name}: a replayed step of {count} differs from the plain one")
    step, params = one_sequence(1, context), sampling_params(1, 1.0, is_greedy=True)
    ms = median_ms(lambda: model.forward(step, arena))
    note_time(report, f"{name} step of 1, no graph", ms, moved)
    draft = torch.full((1,), -1, device=DEVICE)

    def decode() -> int:
        logits = graphs.forward(step)
        assert logits is not None
        return int(sample_and_verify(logits, draft, params).tokens)

    note_time(report, f"{name} token, sampled, wall clock", wall_ms(decode), moved)
    places = torch.arange(chunk)
    extents = ((ExtentView(0, chunk, 0),),)
    prompt = Batch(places, places, places, (0, chunk), extents, places[:1])
    ms = median_ms(lambda: model.forward(prompt, arena))
    matrices = [m for w in model.weights.layers for m in (w.qkv, w.output, w.gate_up, w.down)]
    flops = 2 * chunk * sum(m.shape[0] * m.shape[1] for m in matrices)
    note_time(report, f"{name} prefill {chunk}", ms, flops=flops)


def one_sequence(count: int, context: int) -> Batch:
    """`count` tokens behind `context` rows, the logits of all of them wanted."""
    places = torch.arange(context, context + count)
    extents = ((ExtentView(0, context + count, 0),),)
    return Batch(places, places, places, (0, count), extents, places - context)


def print_report(report: Report, console: Console) -> None:
    table = Table("what", "ms", "floor ms", "share of ceiling")
    for row in report.times:
        table.add_row(
            row["name"], f"{row['ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['share']:.0%}"
        )
    if report.times:
        console.print(table)
    console.print(", ".join(report.machine.values()))
    if report.replies:
        console.print(f"{report.replies} replies equal the CPU's, {report.ties} but for ties")
    for failure in report.failures:
        console.print(failure, style="red", soft_wrap=True)
    console.print(f"{report.checks} checks, {len(report.failures)} failures")


def time_models(report: Report, shapes: tuple[str, ...]) -> None:
    for shape in shapes:
        for weight_dtype in ("bf16", "int4"):
            failure = attempt(
                f"{shape} {weight_dtype}", partial(time_model, report, shape, weight_dtype)
            )
            report.failures += [] if failure is None else [failure]
            torch.cuda.empty_cache()


def run_phase(report: Report, phase: str, is_quick: bool, pool: ProcessPoolExecutor) -> None:
    started = time.monotonic()
    if phase in ("kernels", "models") and not report.ceilings:
        measure_ceilings(report)
    match phase:
        case "checks":
            run_checks(report, pool)
        case "engine":
            run_lives(report, pool, 2 if is_quick else 8)
        case "kernels":
            failure = attempt("times of kernels", partial(time_kernels, report))
            report.failures += [] if failure is None else [failure]
        case "models":
            time_models(report, ("1B",) if is_quick else ("1B", "8B"))
    report.phase_s[phase] = time.monotonic() - started
    say(f"-- {phase}: {report.phase_s[phase]:.0f} s, {len(report.failures)} failures so far")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="no 8B shape, two lives of each kind")
    parser.add_argument("--only", default=",".join(PHASES), help="phases, separated by commas")
    arguments = parser.parse_args()
    phases = arguments.only.split(",")
    if not set(phases) <= set(PHASES):
        parser.error(f"phases are {', '.join(PHASES)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not torch.cuda.is_available():
        console.print("no CUDA device: nothing was checked")
        return NO_DEVICE
    report = Report(
        {
            "device": torch.cuda.get_device_name(),
            "torch": f"torch {torch.__version__}",
            "triton": f"triton {triton.__version__}",
        }
    )
    num_processes = max(1, min(14, (os.cpu_count() or 2) - 2))
    # torch's threads of that many processes would wait for each other by spinning
    start_worker = partial(torch.set_num_threads, 1)
    with ProcessPoolExecutor(num_processes, get_context("spawn"), start_worker) as pool:
        for phase in phases:
            run_phase(report, phase, arguments.quick, pool)
            if arguments.json:
                arguments.json.write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
    print_report(report, console)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
