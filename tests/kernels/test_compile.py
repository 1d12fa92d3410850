"""Every kernel compiles for the GPUs there are, whether or not this machine has one, and no half type spills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.thorough import pick

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "compile_kernels.py"
ARCHS = pick((80, 100), thorough=(80, 89, 90, 100))


def test_kernels_compile_for_every_gpu() -> None:
    # The interpreter of the other tests and the compiler cannot share a process.
    command = [sys.executable, PROGRAM, "--quick", "--arch", ",".join(map(str, ARCHS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for arch in ARCHS:
        assert f"sm_{arch} gemma2-2b prefill paged_attention_kernel" in done.stdout
    assert "sample bfloat16" in done.stdout
