"""Check and time the kernels and the engine on a machine with a CUDA device.

    python3 scripts/gpu_check.py [--json FILE] [--quick]

Uses that machine's own torch and triton. Exit code 0: every check passed; 1: one failed; 3: there
is no CUDA device. Correctness is the code of tests/kernels/checks.py: float64 references, fresh
inputs, outputs allocated as NaN. Times are medians with the L2 cache cleared before each run,
beside what the measured copy bandwidth or matmul rate would allow. Last comes a short table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
from kernels.sample import TOP_P_OFF, SampleParams, sample_and_verify
from kernels.segment_attention import AttentionTable, segment_attention
from kernels.swiglu import swiglu
from llm_engine.batch import Batch, ExtentView
from llm_engine.config import ModelConfig
from llm_engine.cuda_graphs import StepGraphs
from llm_engine.model import Model
from llm_engine.random_model import random_model
from llm_engine.weights import LayerWeights, Weights
from tests.kernels import checks

NO_DEVICE = 3
DEVICE = "cuda"
FLOAT, BRAIN, HALF, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
WANTED_SHARE = 0.8  # of the ceiling, for kernels that are bound by memory
WANTED_DECODE_SHARE = 0.7  # 1B shape, of its bandwidth floor, with graphs


@dataclass
class Report:
    """What was found; `failures` decides the exit code."""

    checks: int = 0
    failures: list[str] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)


def correctness() -> Iterator[tuple[str, Callable[[], None]]]:
    """Named checks, each callable once."""
    for dtype in (FLOAT, BRAIN, HALF):
        for num_tokens, hidden in ((1, 64), (63, 100), (257, 4096), (2, 8192)):
            run = partial(checks.check_rms_norm, DEVICE, num_tokens, hidden, dtype)
            yield f"rms_norm {num_tokens}x{hidden} {dtype}", partial(run, True)
            yield f"rms_norm {num_tokens}x{hidden} {dtype} plain", partial(run, False)
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
        for bits in (8, 4):
            for sizes in ((1, 1, 32), (5, 33, 288), (16, 4096, 4096), (200, 1000, 1536)):
                run = partial(checks.check_linear, DEVICE, sizes, dtype, bits, has_bias=True)
                yield f"linear int{bits} {sizes} {dtype}", run
    for vocab in (1, 5, 2500, 49152, 128256):
        yield f"sample {vocab}", partial(checks.check_sample, DEVICE, vocab)
        yield f"sample greedy {vocab}", partial(checks.check_sample, DEVICE, vocab, is_greedy=True)
    yield "rows beyond int32", partial(checks.check_rows_beyond_int32, DEVICE)


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


def run_checks(report: Report, console: Console) -> None:
    for name, check in correctness():
        report.checks += 1
        try:
            check()
        except Exception as error:  # any failure is a finding; the rest still runs
            report.failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    console.print(f"{report.checks} kernel checks, {len(report.failures)} failures")


def median_ms(run: Callable[[], Any]) -> float:
    return float(triton.testing.do_bench(run, warmup=10, rep=60, return_mode="median"))


def measure_ceilings(report: Report) -> None:
    source = torch.randn(2**29, device=DEVICE).to(BRAIN)  # 1 GiB
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source))
    report.ceilings["copy_bytes_per_s"] = 2 * source.numel() * 2 / copy_ms * 1e3
    a, b = torch.randn(2, 8192, 8192, device=DEVICE).to(BRAIN)
    report.ceilings["matmul_flops_per_s"] = 2 * 8192**3 / median_ms(lambda: a @ b) * 1e3


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
    if share < wanted:
        report.failures.append(f"{name}: {share:.0%} of its ceiling, {wanted:.0%} wanted")


def time_kernels(report: Report) -> None:
    num_tokens, hidden, inner, vocab = 8192, 4096, 14336, 128256
    x, residual = torch.randn(2, num_tokens, hidden, device=DEVICE).to(BRAIN)
    weight = torch.randn(hidden, device=DEVICE).to(BRAIN)
    ms = median_ms(lambda: rms_norm(x, weight, 1e-5, residual))
    note_time(report, "rms_norm + residual", ms, 4 * x.numel() * 2, wanted=WANTED_SHARE)
    gate_up = torch.randn(num_tokens, 2 * inner, device=DEVICE).to(BRAIN)
    ms = median_ms(partial(swiglu, gate_up))
    note_time(report, "swiglu", ms, 1.5 * gate_up.numel() * 2, wanted=WANTED_SHARE)
    del gate_up
    q = torch.randn(num_tokens, 32, 128, device=DEVICE).to(BRAIN)
    k = torch.randn(num_tokens, 8, 128, device=DEVICE).to(BRAIN)
    cos, sin = torch.randn(2, num_tokens, 64, device=DEVICE)
    rows = torch.arange(num_tokens, device=DEVICE)
    arena = KVArena(1, num_tokens, 8, 128, BRAIN, DEVICE)
    ms = median_ms(lambda: rope_and_write_kv(q, k, k, cos, sin, rows, arena.layers[0]))
    moved = 2 * q.numel() * 2 + 4 * k.numel() * 2 + 2 * cos.numel() * 4
    note_time(report, "rope + KV write", ms, moved, wanted=WANTED_SHARE)
    time_attention(report)
    for bits, quantise in ((8, quantise_int8), (4, quantise_int4)):
        matrix = quantise(torch.randn(2 * inner, hidden, device=DEVICE))
        size = matrix.shape[0] * matrix.shape[1]
        stored = size * bits / 8 + size / 32 * (2 if bits == 8 else 4)
        for count, wanted in ((1, WANTED_SHARE), (8, WANTED_SHARE), (4096, 0.0)):
            few = torch.randn(count, hidden, device=DEVICE).to(BRAIN)
            ms = median_ms(partial(linear, few, matrix))
            flops = 2 * count * size
            note_time(report, f"linear int{bits}, {count} tokens", ms, stored, flops, wanted)
    logits = torch.randn(16, vocab, device=DEVICE)
    draft = torch.full((16,), -1, device=DEVICE)
    for name, top_p in (("top-p", 0.9), ("plain", 1.0)):
        params = sampling_params(16, top_p)
        ms = median_ms(partial(sample_and_verify, logits, draft, params))
        note_time(report, f"sample 16 rows, {name}", ms, logits.numel() * 4)


def sampling_params(num_rows: int, top_p: float) -> SampleParams:
    ones = torch.ones(num_rows, device=DEVICE)
    integers = torch.zeros(num_rows + 1, dtype=torch.int64, device=DEVICE)
    return SampleParams(
        is_greedy=False,
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
    spans = tuple((checks.Span(s * context, context, 0),) for s in range(num_sequences))
    decode = checks.AttentionCase(num_rows, spans, ((context - 1,),) * num_sequences)
    for kv_dtype in (BRAIN, INT8):
        cache = checks.random_kv(num_rows, heads[1], heads[2], kv_dtype, DEVICE)
        q = torch.randn(num_sequences, heads[0], heads[2], device=DEVICE).to(BRAIN)
        table = decode.table(DEVICE)
        ms = median_ms(partial(segment_attention, q, cache, table, 0.1))
        moved = 2 * cache.keys.numel() * cache.keys.element_size()
        if cache.key_scales is not None:
            moved += 2 * cache.key_scales.numel() * 4
        name = f"attention decode, 16 x {context}, rows {kv_dtype}"
        note_time(report, name, ms, moved, wanted=WANTED_SHARE)
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


def weight_bytes(weight: LinearWeight) -> int:
    tensors = (getattr(weight, name) for name in weight.__slots__)
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def time_model(report: Report, shape: str, weight_dtype: str) -> None:
    model = big_model(shape, weight_dtype)
    context, chunk = 1024, 512
    arena = model.new_arena(context + 2)
    graphs = StepGraphs(model, arena, context + 1, 2 * context)
    one = torch.tensor([1])
    step = Batch(
        one, one * context, one * context, (0, 1), ((ExtentView(0, context + 1, 0),),), one * 0
    )
    matrices = [m for w in model.weights.layers for m in (w.qkv, w.output, w.gate_up, w.down)]
    matrices.append(model.weights.head)
    moved = sum(map(weight_bytes, matrices)) + arena.num_bytes
    name = f"{shape} {weight_dtype}"
    wanted = WANTED_DECODE_SHARE if shape == "1B" else 0.0
    ms = median_ms(lambda: graphs.forward(step))
    note_time(report, f"{name} decode, graph", ms, moved, wanted=wanted)
    ms = median_ms(lambda: model.forward(step, arena))
    note_time(report, f"{name} decode, no graph", ms, moved)
    plain, replayed = model.forward(step, arena), graphs.forward(step)
    assert replayed is not None
    if not torch.allclose(plain, replayed, rtol=0, atol=0.05 * float(plain.abs().max())):
        report.failures.append(f"{name}: the replayed step differs from the plain one")
    places = torch.arange(chunk)
    prompt = Batch(places, places, places, (0, chunk), ((ExtentView(0, chunk, 0),),), one * 0)
    ms = median_ms(lambda: model.forward(prompt, arena))
    flops = 2 * chunk * sum(m.shape[0] * m.shape[1] for m in matrices[:-1])
    note_time(report, f"{name} prefill {chunk}", ms, flops=flops)


def check_engine(report: Report, seeds: range) -> None:
    """Random lives of sessions on the GPU; every reply equals the CPU's but for ties."""
    from tests.llm_engine.engine_rig import first_difference, make_engine
    from tests.llm_engine.histories import play, replay_commits

    for family in ("llama2", "smollm2", "mistral", "qwen3"):
        on_gpu, on_cpu = random_model(family, 0, device=DEVICE), random_model(family, 0)
        for seed in seeds:
            report.checks += 1
            try:
                for caller in play(make_engine(on_gpu), seed, 16):
                    plain = replay_commits(make_engine(on_cpu), caller.answers)
                    for answer, expected in zip(caller.answers, plain, strict=True):
                        own = answer.reply
                        if answer.reason == "cancelled":
                            expected_reply = expected.reply[: len(own)]
                        else:
                            expected_reply = expected.reply
                        index = first_difference(own, expected_reply)
                        tie = expected.tie_index
                        assert index is None or (tie is not None and tie <= index), (
                            f"turn {answer.turn} differs at token {index}, tie at {tie}"
                        )
            except Exception as error:
                report.failures.append(f"engine {family} seed {seed}: {str(error)[:200]}")


def print_report(report: Report, console: Console) -> None:
    table = Table("what", "ms", "floor ms", "share of ceiling")
    for row in report.times:
        table.add_row(
            row["name"], f"{row['ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['share']:.0%}"
        )
    console.print(table)
    copy, matmul = report.ceilings.values()
    rates = f"copy {copy / 1e12:.2f} TB/s, matmul {matmul / 1e12:.0f} TFLOP/s"
    console.print(f"{torch.cuda.get_device_name()}: {rates}")
    console.print(f"torch {torch.__version__}, triton {triton.__version__}")
    for failure in report.failures:
        console.print(failure, style="red", soft_wrap=True)
    console.print(f"{report.checks} checks, {len(report.failures)} failures")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="no 8B shape, two lives per family")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not torch.cuda.is_available():
        console.print("no CUDA device: nothing was checked")
        return NO_DEVICE
    started = time.monotonic()
    report = Report()
    run_checks(report, console)
    measure_ceilings(report)
    time_kernels(report)
    for shape in ("1B",) if arguments.quick else ("1B", "8B"):
        for weight_dtype in ("bf16", "int4"):
            time_model(report, shape, weight_dtype)
            torch.cuda.empty_cache()
    check_engine(report, range(2 if arguments.quick else 6))
    console.print(f"{time.monotonic() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
    print_report(report, console)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
