"""Until a vLLM server answers: for the tests here and for `benchmarks/calibration_vllm.py`."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx

READY_WITHIN_S = 900.0


def await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Raises `RuntimeError` with the end of the server's log if it does not come up."""
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s and process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
