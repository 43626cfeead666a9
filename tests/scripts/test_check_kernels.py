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
