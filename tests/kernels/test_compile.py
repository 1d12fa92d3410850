"""Every kernel compiles for a GPU, whether or not this machine has one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_every_kernel_compiles_for_compute_capability_9() -> None:
    # The interpreter of the other tests and the compiler cannot share a process.
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    program = Path(__file__).with_name("compile_for_gpu.py")
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("paged_attention_kernel") >= 10
