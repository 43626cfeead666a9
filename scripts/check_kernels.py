"""Compile every Triton kernel ahead of time, without a GPU, and report the compiler's figures.

    python -m scripts.check_kernels            every configuration, sm_80, sm_90 and sm_100
    python -m scripts.check_kernels --quick    one configuration per kernel and target

What is compiled is recorded from the checked wrappers, called on tensors without storage in the
shapes of the models below: the configurations are those the engine starts. Registers, spills and
shared memory are ptxas' own figures. Exit code 1 when a limit is passed: more shared memory than a
block of the target may have, a spill in a kernel of the decode step, or any other spill without a
reason in `ALLOWED_SPILLS`. sm_100 is reported and never fails.
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
from dataclasses import dataclass
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
from kernels.linear import DenseWeight, Int4Weight, Int8Weight, linear
from kernels.rms_norm import rms_norm
from kernels.rope import rope_and_write_kv
from kernels.rope_shift import rope_shift
from kernels.sample_kernel import choose_and_accept
from kernels.segment_attention import AttentionTable, segment_attention
from kernels.swiglu import swiglu

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
    """Of a kernel outside the decode step, by the type of its first argument."""

    kernel: str
    types: tuple[str, ...]
    targets: tuple[int, ...]
    max_bytes: int
    reason: str


ALLOWED_SPILLS = (
    AllowedSpill(
        "_segment_attention_kernel",
        ("*fp32",),
        TARGETS,
        32,
        "IEEE products run without tensor cores",
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


SHAPES = (
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152),
    Shape("Llama-1B", 2048, 8192, 32, 8, 64, 128256),
    Shape("Llama-8B", 4096, 14336, 32, 8, 128, 128256),
    Shape("Qwen2.5-0.5B", 896, 4864, 14, 2, 64, 151936),
    Shape("Mistral-7B", 4096, 14336, 32, 8, 128, 32000, window=4096),
)
# batch kind: tokens of each sequence, readable rows of each sequence
BATCHES = {
    "token": ([1], 4096),
    "decode": ([1] * 8, 4096),
    "verify": ([8] * 4, 2048),
    "prefill": ([512, 64], 1024),
}
DECODE = ("token", "decode")


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
        for allowed in ALLOWED_SPILLS:
            is_meant = allowed.kernel == self.kernel.__name__ and capability in allowed.targets
            is_small = num_bytes <= allowed.max_bytes
            if is_meant and is_small and self.signature[0][1] in allowed.types:
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


def record(shape: Shape, batch: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> list[Launch]:
    """What one layer of `shape` starts for a batch of the kind."""
    lengths, readable = BATCHES[batch]
    num_tokens = sum(lengths)
    with torch.device("meta"), use_backend("triton"), record_launches() as launches:
        x = torch.empty(num_tokens, shape.hidden, dtype=dtype)
        rms_norm(x, torch.empty(shape.hidden, dtype=dtype), 1e-5)
        rms_norm(x, torch.empty(shape.hidden, dtype=dtype), 1e-5, x)
        arena = KVArena(1, 64, shape.num_kv_heads, shape.head_dim, kv_dtype, device="meta")
        q = torch.empty(num_tokens, shape.num_heads, shape.head_dim, dtype=dtype)
        k = torch.empty(num_tokens, shape.num_kv_heads, shape.head_dim, dtype=dtype)
        angle = torch.empty(num_tokens, shape.head_dim // 2)
        rows = torch.empty(num_tokens, dtype=torch.int64)
        rope_and_write_kv(q, k, k, angle, angle, rows, arena.layers[0])
        rope_shift(arena, 3, 32, angle[0], angle[0])
        starts = torch.empty(len(lengths) + 1, dtype=torch.int64)
        table = AttentionTable(
            torch.empty(len(lengths), 3, dtype=torch.int64),
            starts,
            starts,
            rows,
            max(lengths),
            readable,
        )
        segment_attention(q, arena.layers[0], table, 0.125, shape.window)
        swiglu(torch.empty(num_tokens, 2 * shape.intermediate, dtype=dtype))
        groups = shape.hidden // 32
        scale = torch.empty(shape.hidden, groups, dtype=torch.float16)
        q8 = torch.empty(shape.hidden, shape.hidden, dtype=torch.int8)
        q4 = torch.empty(shape.hidden, shape.hidden // 2, dtype=torch.uint8)
        linear(x, DenseWeight(torch.empty(shape.hidden, shape.hidden, dtype=dtype)))
        linear(x, Int8Weight(q8, scale))
        linear(x, Int4Weight(q4, scale, scale))
        linear(x, Int4Weight(q4, scale, scale, torch.empty(shape.hidden, dtype=dtype)))
        record_sampling(num_tokens, shape.vocab)
    return launches


def record_sampling(num_rows: int, vocab: int) -> None:
    logits, floats = torch.empty(num_rows, vocab), torch.empty(num_rows)
    ids = torch.empty(num_rows + 1, dtype=torch.int64)
    keys = torch.empty(num_rows, 2, dtype=torch.int64)
    for is_greedy in (False, True):
        choose_and_accept(
            logits,
            ids[1:],
            is_greedy,
            temperature=floats,
            top_k=ids[1:],
            top_p=ids[1:],
            log_min_p=floats,
            penalty=floats,
            keys=keys,
            preceding_ids=ids,
            preceding_start=ids,
        )


@cache
def variants(quick: bool) -> list[Variant]:
    """All distinct compilations in a fixed order; with `quick` the first of each kernel."""
    found: dict[Any, Variant] = {}
    for launch, in_decode in _launches():
        variant = variant_of(launch, in_decode)
        key = (variant.kernel.__name__, variant.signature, variant.constants, variant.attributes)
        found.setdefault(variant.kernel.__name__ if quick else (*key, variant.options), variant)
    return list(found.values())


def _launches() -> Iterator[tuple[Launch, bool]]:
    for shape in SHAPES[1:] + SHAPES[:1]:
        for batch in BATCHES:
            for dtype, kv_dtype in _DTYPES if shape is SHAPES[1] else _DTYPES[:2]:
                for launch in record(shape, batch, dtype, kv_dtype):
                    yield launch, batch in DECODE


_DTYPES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.float16, torch.float16),
    (torch.float32, torch.float32),
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
