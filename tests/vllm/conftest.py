"""Tests against a real vLLM: `make test-vllm`. Elsewhere they are skipped.

`SCHEDTOP_TEST_MODEL` is a model folder that vLLM can serve on the CPU.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.vllm.waiting import await_ready

MODEL = os.environ.get("SCHEDTOP_TEST_MODEL", "")
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MODEL:
        return
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason="needs vLLM and a model: make test-vllm"))


class Server:
    """A vLLM server, `hooked` or not; `log` is what it said. `overlaps`: steps are scheduled asynchronously."""

    def __init__(self, folder: Path, *flags: str, overlaps: bool = False, hooked: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.address = f"http://127.0.0.1:{port}", f"unix:{folder}/0.sock"
        self.log = folder / "server.log"
        overlapping = str(Path(__file__).parent / "serve_overlapping.py")
        program = [overlapping] if overlaps else ["-m", "vllm.entrypoints.cli.main"]
        command = [sys.executable, "-P", *program, "serve", MODEL]
        limits = ["--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]
        limits += ["--dtype", "float32"]  # in bfloat16 an answer depends on who shares its batch
        where = ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
        environment = {
            "OMP_NUM_THREADS": "2",
            **os.environ,
            "SCHEDTOP_ATTACH": f"unix:{folder}/%r.sock" if hooked else "",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *where, *limits, *flags],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder,
            )

    def await_ready(self) -> None:
        """Raises `RuntimeError` with the end of its log if it does not come up."""
        await_ready(self.process, self.url, self.log)

    def close(self, number: int = signal.SIGTERM) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        try:
            self.process.wait(60)
        finally:  # whatever of it is left
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("vllm"))
    try:
        server.await_ready()
        yield server
    finally:
        server.close()
