"""What scripts/gpu_check.py says where there is no GPU; its checks run in tests/kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def test_without_a_device_it_says_so_and_checks_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gpu_check.py"],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "no CUDA device: nothing was checked\n"
