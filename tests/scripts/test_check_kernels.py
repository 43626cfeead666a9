"""Ahead-of-time compilation, in its own process: what is compiled cannot be interpreted as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KERNELS = (
    "rms_norm",
    "rope_and_write_kv",
    "rope_shift",
    "segment_attention",
    "merge_splits",
    "swiglu",
    "vector",
    "slices",
    "tiles",
    "scale",
    "penalise",
    "choose",
    "accept",
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_one_configuration_of_every_kernel_compiles_within_its_limits() -> None:
    done = run("scripts/check_kernels.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in KERNELS if f"│ {name} " not in done.stdout] == []
    assert f"{len(KERNELS)} configurations x 3 targets: 0 problems" in done.stdout


@pytest.mark.slow
def test_every_configuration_compiles_within_its_limits() -> None:
    done = run("scripts/check_kernels.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "targets: 0 problems" in done.stdout


def test_a_replayed_step_multiplies_the_matrices_of_the_model() -> None:
    program = """
import torch
from scripts.check_kernels import SHAPES, model_of, record_replayed
(qwen,) = (shape for shape in SHAPES if shape.name == "Qwen2.5-0.5B")
products = set()
for launch in record_replayed(model_of(qwen, torch.bfloat16, "int4"), torch.bfloat16):
    values = dict(zip(launch.kernel.arg_names, launch.args))
    if "minimum_ptr" in values:
        has_bias = values["bias_ptr"] is not None
        products.add((values["num_outputs"], values["num_inputs"], has_bias))
print(sorted(products))
"""
    qkv, output, gate_up, down = (1152, 896, True), (896, 896), (9728, 896), (896, 4864)
    others = [(*sizes, False) for sizes in (output, gate_up, down, (151936, 896))]
    done = run("-c", program)
    assert done.stdout.strip() == str(sorted([qkv, *others])), done.stderr


def test_only_views_that_begin_at_16_bytes_count_as_aligned() -> None:
    program = """
from scripts.check_kernels import variant_of
import torch
from kernels.dispatch import use_backend
from kernels.launch import record_launches
from kernels.rms_norm import rms_norm
x = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
weight = torch.empty(12, dtype=torch.bfloat16, device="meta")
with use_backend("triton"), record_launches() as launches:
    rms_norm(x, weight[:8], 1e-5)
    rms_norm(x, weight[4:], 1e-5)
for launch in launches:
    print("weight_ptr" in variant_of(launch, False).attributes, end=" ")
"""
    done = run("-c", program)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_passed_limit_is_a_problem_on_enforced_targets_only() -> None:
    program = """
from dataclasses import replace
from scripts.check_kernels import Resources, problems_of, variants
decode = variants(quick=True)[0]
prefill = replace(decode, in_decode=False)
for variant, target, used in (
    (decode, 80, Resources(255, 0, 163 * 1024)),
    (decode, 80, Resources(32, 8, 0)),
    (prefill, 90, Resources(32, 8, 0)),
    (prefill, 90, Resources(32, 0, 228 * 1024)),
    (decode, 100, Resources(300, 8, 300 * 1024)),
):
    print(len(problems_of(variant, target, used)), end=" ")
"""
    done = run("-c", program)
    assert done.stdout.split() == ["0", "1", "1", "1", "0"], done.stderr
