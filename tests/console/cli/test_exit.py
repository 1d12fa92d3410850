"""Leaving: the exit code arrives, what was printed is there, and teardown noise is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = (
    "import sys; sys.modules.setdefault('triton', sys); {noise}; print('last words'); "
    "from schedtop.engine.serving.quiet_exit import leave; leave(7)"
)
NOISE = "import atexit; atexit.register(print, 'noise')"


@pytest.mark.parametrize("loaded", [True, False])
def test_the_code_and_the_output_arrive_and_teardown_is_skipped_only_with_triton(loaded: bool) -> None:
    script = SCRIPT.format(noise=NOISE)
    if not loaded:
        script = script.replace("sys.modules.setdefault('triton', sys); ", "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout.splitlines() == (["last words"] if loaded else ["last words", "noise"])
