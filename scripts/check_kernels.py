"""Compile every Triton kernel ahead of time, without a GPU, and report the compiler's figures.

    python -m scripts.check_kernels            every configuration, sm_80, sm_90 and sm_100
    python -m scripts.check_kernels --quick    one configuration per kernel and target

What is compiled is recorded from the engine's own passes, run on tensors without storage in the
shapes of the models below, with dense, int8 and int4 weights: a step of every bucket of the CUDA
graphs, then single tokens and prompts outside graphs, in every number of splits. For these models
and `EngineConfig`'s sizes the configurations are all that the engine starts in bfloat16, with
bfloat16 and int8 rows; the first of the shapes is compiled in float32 and float16 as well.
Registers, spills and shared memory are ptxas' own figures. Exit code 1 when a limit is passed: more
shared memory than a block of the target may have, a spill in a kernel of the decode step, or any
other spill without a reason in `ALLOWED_SPILLS`. sm_100 is reported and never fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # an interpreted kernel cannot be compiled
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
from rich.console import Console
from rich.progress import track
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from kernels.dispatch import use_backend
from kernels.kv import KVArena
from kernels.launch import Launch, record_launches
from kernels.linear import DenseWeight, Int4Weight, Int8Weight, LinearWeight
from kernels.rope_shift import rope_shift
from kernels.sample_kernel import choose_and_accept
from kernels.segment_attention import MAX_SPLITS, MIN_SPLIT_ROWS
from llm_engine.batch import Batch, ExtentView
from llm_engine.config import ModelConfig, RopeConfig
from llm_engine.cuda_graphs import BUCKETS, Pass, StepGraphs
from llm_engine.engine_config import EngineConfig
from llm_engine.model import Model
from llm_engine.weights import LayerWeights, Weights

TARGETS = (80, 90, 100)
ENFORCED = (80, 90)
MAX_SHARED_BYTES = {
    80: 163 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
}  # per block, CUDA guide table 21
MAX_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class AllowedSpill:
    """Of a kernel outside the decode step, by the types of its first arguments."""

    kernel: str
    types: tuple[str, ...]  # any of these; attention: of queries and rows
    targets: tuple[int, ...]
    max_bytes: int
    reason: str


ALLOWED_SPILLS = (
    AllowedSpill(
        "_segment_attention_kernel",
        ("*fp32 *fp32",),
        TARGETS,
        32,
        "IEEE products run without tensor cores",
    ),
    AllowedSpill(
        "_segment_attention_kernel",
        ("*fp32 *i8",),
        TARGETS,
        832,
        "IEEE products run without tensor cores, beside rows that are widened; eight warps or "
        "blocks of 16 rows would not spill, but nobody has measured int8 rows under float32",
    ),
    AllowedSpill(
        "_segment_attention_kernel",
        ("*bf16", "*fp16"),
        (80,),
        32,
        "two blocks of rows under way beside four warps' sums; eight warps or one block would not "
        "spill, but this is what sm_90 was fastest with, and no sm_80 has been measured",
    ),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that decide how its kernels are compiled."""

    name: str
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    window: int | None = None
    has_qkv_bias: bool = False
    has_head_norms: bool = False  # of q and k


SHAPES = (
    Shape("Llama-1B", 2048, 8192, 32, 8, 64, 128256),  # the one for all dtypes
    Shape("Llama-8B", 4096, 14336, 32, 8, 128, 128256),
    Shape("Qwen2.5-0.5B", 896, 4864, 14, 2, 64, 151936, has_qkv_bias=True),
    Shape("Qwen3-0.6B", 1024, 3072, 16, 8, 128, 151936, has_head_norms=True),
    Shape("Mistral-7B", 4096, 14336, 32, 8, 128, 32000, window=4096),
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152),
)
WEIGHT_KINDS = ("dense", "int8", "int4")
# one of these for every number of splits that a batch allows
READABLE = tuple(MIN_SPLIT_ROWS << doubling for doubling in range(MAX_SPLITS.bit_length()))
# the shortest steps that are too long for a graph have the most splits; sums of an odd number of
# tokens may end between 16-byte boundaries
PROMPT_TOKENS = (BUCKETS[-1] + 1, BUCKETS[-1] + 2)
META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation: a kernel with its argument types, constants and options."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    attributes: tuple[str, ...]  # names of arguments known to be divisible by 16
    options: tuple[tuple[str, Any], ...]
    in_decode: bool

    @property
    def label(self) -> str:
        shown = {k.lower(): v for k, v in self.constants if k.isupper()}
        dtypes = sorted({kind for _, kind in self.signature if kind.startswith("*")} & _SHOWN)
        return " ".join([*dtypes, *(f"{k}={v}" for k, v in shown.items() if v is not False)])

    def spill_reason(self, capability: int, num_bytes: int) -> str | None:
        types = " ".join(kind for _, kind in self.signature)
        for allowed in ALLOWED_SPILLS:
            is_meant = allowed.kernel == self.kernel.__name__ and capability in allowed.targets
            is_small = num_bytes <= allowed.max_bytes
            if is_meant and is_small and types.startswith(allowed.types):
                return allowed.reason
        return None

    @property
    def name(self) -> str:
        return str(self.kernel.__name__).strip("_").removesuffix("_kernel")


def variant_of(launch: Launch, in_decode: bool) -> Variant:
    """What Triton would specialise this start to: 16-divisible arguments, 1 as a constant."""
    values = dict(zip(launch.kernel.arg_names, launch.args, strict=False))
    options = {k: v for k, v in launch.options.items() if k not in launch.kernel.arg_names}
    values |= {k: v for k, v in launch.options.items() if k in launch.kernel.arg_names}
    constexprs = {p.name for p in launch.kernel.params if p.is_constexpr}
    free = {p.name for p in launch.kernel.params if p.do_not_specialize}
    signature, constants, divisible = [], [], []
    for name in launch.kernel.arg_names:
        value = values[name]
        kind = _TYPES.get(value.dtype) if isinstance(value, torch.Tensor) else None
        if (
            name in constexprs
            or value is None
            or (isinstance(value, int) and value == 1 and name not in free)
        ):
            signature.append((name, "constexpr"))
            constants.append((name, value))
        elif isinstance(value, torch.Tensor):
            signature.append((name, f"*{kind}"))
            # storage itself begins at a multiple of 16 bytes, a view of it may not
            if value.storage_offset() * value.element_size() % 16 == 0:
                divisible.append(name)
        elif isinstance(value, int):
            signature.append((name, "i32" if abs(value) < 2**31 else "i64"))
            if value % 16 == 0 and name not in free:
                divisible.append(name)
        else:
            signature.append((name, "fp32"))
    return Variant(
        launch.kernel,
        tuple(signature),
        tuple(constants),
        tuple(divisible),
        tuple(sorted(options.items())),
        in_decode,
    )


_SHOWN = {"*bf16", "*fp16", "*i8", "*u8"}
_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True, slots=True)
class Resources:
    registers: int
    spill_bytes: int
    shared_bytes: int


def compile_variant(variant: Variant, capability: int) -> Resources:
    """Compile for sm_`capability` and read ptxas' report."""
    names = list(variant.kernel.arg_names)
    overlaps = capability >= 90  # as kernels/launch.py decides on the device
    source = ASTSource(
        fn=variant.kernel,
        signature=dict(variant.signature),
        constexprs={**dict(variant.constants), "OVERLAP": overlaps},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.attributes},
    )
    target = GPUTarget("cuda", capability, 32)
    options = {**dict(variant.options), "launch_pdl": overlaps}
    compiled = triton.compile(source, target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        arch = re.search(r"\.target (sm_\w+)", compiled.asm["ptx"])
        assert arch is not None
        fuse = [] if dict(variant.options)["enable_fp_fusion"] else ["--fmad=false"]
        command = [get_ptxas(capability).path, "-v", "--regAllocOptLevel=2", *fuse]
        command += [f"--gpu-name={arch[1]}", str(ptx), "-o", str(Path(folder) / "kernel.cubin")]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers is not None and spills is not None, report
    return Resources(
        int(registers[1]), int(spills[1]) + int(spills[2]), int(compiled.metadata.shared)
    )


def model_of(shape: Shape, dtype: torch.dtype, kind: str) -> Model:
    """Two layers of `shape` without storage; every matrix is of the kind."""
    config = ModelConfig(
        family=shape.name,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_layers=2,  # int8 rows: the second layer's scales may begin between 16-byte boundaries
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=1e-5,
        max_positions=8192,
        rope=RopeConfig(),
        windows=(shape.window,) * 2,
        tie_embeddings=True,
        qkv_bias=shape.has_qkv_bias,
        qk_norm=shape.has_head_norms,
    )
    hidden, inner, query = config.hidden_size, config.intermediate_size, config.query_size

    def vector(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=META)

    qkv = matrix_of(kind, query + 2 * config.kv_size, hidden, dtype)
    layer = LayerWeights(
        input_norm=vector(hidden),
        qkv=replace(qkv, bias=vector(qkv.shape[0])) if config.qkv_bias else qkv,
        q_norm=vector(config.head_dim) if config.qk_norm else None,
        k_norm=vector(config.head_dim) if config.qk_norm else None,
        output=matrix_of(kind, hidden, query, dtype),
        post_norm=vector(hidden),
        gate_up=matrix_of(kind, 2 * inner, hidden, dtype),
        down=matrix_of(kind, hidden, inner, dtype),
    )
    head = matrix_of(kind, config.vocab_size, hidden, dtype)
    return Model(config, Weights(head, (layer, layer), vector(hidden), head), dtype, META)


def matrix_of(kind: str, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> LinearWeight:
    if kind == "dense":
        return DenseWeight(torch.empty(num_outputs, num_inputs, dtype=dtype, device=META))
    scale = torch.empty(num_outputs, num_inputs // 32, dtype=torch.float16, device=META)
    if kind == "int8":
        q = torch.empty(num_outputs, num_inputs, dtype=torch.int8, device=META)
        return Int8Weight(q, scale)
    packed = torch.empty(num_outputs, num_inputs // 2, dtype=torch.uint8, device=META)
    return Int4Weight(packed, scale, scale)


def arena_of(model: Model, kv_dtype: torch.dtype) -> KVArena:
    return model.new_arena(EngineConfig().num_rows + 1, kv_dtype)  # one row for padding tokens


def record_replayed(model: Model, kv_dtype: torch.dtype) -> list[Launch]:
    """What the engine captures as CUDA graphs: a step of every bucket of tokens."""

    def run_once(run: Pass) -> Pass:
        run()
        return run

    sizes, arena = EngineConfig(), arena_of(model, kv_dtype)
    bound = 2 * sizes.max_sequence_tokens  # as the runner has it
    with use_backend("triton"), record_launches() as launches:
        StepGraphs(model, arena, sizes.num_rows, bound, run_once).warm_up()
    return launches


def record_plain(model: Model, kv_dtype: torch.dtype, num_tokens: int) -> list[Launch]:
    """What a step of one sequence starts without a graph, for every length of its history."""
    arena = arena_of(model, kv_dtype)
    places = torch.arange(num_tokens)
    with use_backend("triton"), record_launches() as launches:
        for num_rows in READABLE:
            extents = ((ExtentView(0, num_rows, 0),),)
            batch = Batch(places, places, places, (0, num_tokens), extents, places[-1:])
            model.forward(batch, arena)
    return launches


def record_shift(model: Model, kv_dtype: torch.dtype) -> list[Launch]:
    angle = torch.empty(model.config.head_dim // 2, device=META)
    with use_backend("triton"), record_launches() as launches:
        rope_shift(arena_of(model, kv_dtype), 3, 32, angle, angle)
    return launches


def record_sampling(num_rows: int, vocab: int) -> list[Launch]:
    with torch.device(META), record_launches() as launches:
        floats, ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        for is_greedy in (False, True):
            choose_and_accept(
                torch.empty(num_rows, vocab),
                ids,
                is_greedy,
                temperature=floats,
                top_k=ids,
                top_p=ids,
                log_min_p=floats,
                penalty=floats,
                keys=torch.empty(num_rows, 2, dtype=torch.int64),
                preceding_ids=ids,
                preceding_start=torch.empty(num_rows + 1, dtype=torch.int64),
            )
    return launches


@cache
def variants(quick: bool) -> list[Variant]:
    """All distinct compilations in a fixed order; with `quick` the first of each kernel."""
    found: dict[Any, Variant] = {}
    for launches, in_decode in _recordings(SHAPES[:1] if quick else SHAPES):
        for launch in launches:
            variant = variant_of(launch, in_decode)
            key = variant.name if quick else replace(variant, in_decode=False)
            if key not in found or (in_decode and not quick):
                found[key] = variant
    return list(found.values())


def _recordings(shapes: tuple[Shape, ...]) -> Iterator[tuple[list[Launch], bool]]:
    """All that is started, and whether it belongs to the decode step."""
    for shape in shapes:
        for dtype, kv_dtype in _DTYPES if shape is SHAPES[0] else _DTYPES[:2]:
            for kind in WEIGHT_KINDS:
                yield record_replayed(model_of(shape, dtype, kind), kv_dtype), True
            model = model_of(shape, dtype, "dense")  # attention is the same for all kinds
            yield record_plain(model, kv_dtype, 1), True
            for num_tokens in PROMPT_TOKENS:
                yield record_plain(model, kv_dtype, num_tokens), False
            yield record_shift(model, kv_dtype), True
        for num_rows in (*BUCKETS, 128, 256):
            yield record_sampling(num_rows, shape.vocab), num_rows in BUCKETS


_DTYPES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.float16, torch.float16),
    (torch.float32, torch.float32),
    (torch.float32, torch.int8),
)


def problems_of(variant: Variant, capability: int, used: Resources) -> list[str]:
    """Limits that this compilation passes on an enforced target."""
    if capability not in ENFORCED:
        return []
    name = variant.kernel.__name__
    problems: list[str] = []
    if used.shared_bytes > MAX_SHARED_BYTES[capability]:
        problems.append(f"{used.shared_bytes} bytes of shared memory")
    if used.registers > MAX_REGISTERS:
        problems.append(f"{used.registers} registers")
    if used.spill_bytes and variant.in_decode:
        problems.append(f"{used.spill_bytes} bytes spilled in the decode step")
    elif used.spill_bytes and variant.spill_reason(capability, used.spill_bytes) is None:
        problems.append(f"{used.spill_bytes} bytes spilled without a reason")
    return [f"{name} sm_{capability} {variant.label}: {problem}" for problem in problems]


def notes_of(variant: Variant, used: dict[int, Resources]) -> str:
    notes = ["decode"] if variant.in_decode else []
    for capability, resources in used.items():
        if resources.spill_bytes:
            reason = variant.spill_reason(capability, resources.spill_bytes) or "no reason known"
            notes.append(f"sm_{capability} spills {resources.spill_bytes} B: {reason}")
    return "; ".join(notes)


def compile_for_all_targets(quick: bool, index: int) -> dict[int, Resources]:
    """In a process of its own: kernels themselves cannot be sent to another."""
    variant = variants(quick)[index]
    return {capability: compile_variant(variant, capability) for capability in TARGETS}


def compile_all(quick: bool, num_processes: int) -> Iterator[dict[int, Resources]]:
    """The figures of each variant, in order."""
    count = len(variants(quick))
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        found = pool.map(compile_for_all_targets, [quick] * count, range(count))
        yield from track(found, "compiling", total=count, console=Console(stderr=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one configuration per kernel")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    chosen = variants(arguments.quick)
    sizes = "/".join(str(capability) for capability in TARGETS)
    table = Table(
        "kernel", "configuration", "warps", f"registers {sizes}", "spilled B", "shared B", "notes"
    )
    problems: list[str] = []
    compiled = compile_all(arguments.quick, arguments.processes)
    for variant, used in zip(chosen, compiled, strict=True):
        for capability, resources in used.items():
            problems += problems_of(variant, capability, resources)
        table.add_row(
            variant.name,
            variant.label,
            str(dict(variant.options)["num_warps"]),
            "/".join(str(resources.registers) for resources in used.values()),
            "/".join(str(resources.spill_bytes) for resources in used.values()),
            "/".join(str(resources.shared_bytes) for resources in used.values()),
            notes_of(variant, used),
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(
        f"{len(chosen)} configurations x {len(TARGETS)} targets: {len(problems)} problems"
    )
    for problem in problems:
        console.print(problem, style="red", soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
