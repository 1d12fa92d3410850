"""The part of `calibration.py` that serves a real vLLM: streaming clients send loads, schedtop's hook records them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.telemetry import Header, StepRecord
from schedtop.engine.offline.report import Report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SETTLES_S = 3.0
"""A load is over once the server has reported nothing for this long."""

Session = tuple[Header, list[StepRecord], dict[str, Any]]


@dataclass(frozen=True)
class Load:
    """`rate` requests per second in the first `on_s` of every ten seconds, below `prompt` and `output` tokens long."""

    name: str
    seed: int
    rate: float
    on_s: float
    prompt: int
    output: int

    def requests(self, seconds: float) -> list[tuple[float, int, int]]:
        """When each arrives, and its prompt and output in tokens."""
        rng, now_s, found = random.Random(self.seed), 0.0, []
        while (now_s := now_s + rng.expovariate(self.rate)) < seconds * self.on_s / 10:
            sent_s = now_s // self.on_s * 10 + now_s % self.on_s
            found.append((sent_s, rng.randrange(8, self.prompt), rng.randrange(4, self.output)))
        return found


FITTED = Load("bursts and pauses", 1, 4.0, 3.0, 400, 60)
LONE = Load("lone prompts", 2, 0.5, 10.0, 80, 6)
PREDICTED = Load("steady chats", 3, 1.0, 10.0, 200, 40)
WARM_UP = Load("warm-up", 4, 2.0, 10.0, 300, 20)


class Server:
    """A vLLM server on the CPU with the hook in it."""

    def __init__(self, python: str, model: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (folder / "schedtop").mkdir()
        for room in ("console", "engine", "kernels", "themes"):
            (folder / "schedtop" / room).symlink_to(ROOT / room)
        self.url, self.address, self.log = f"http://127.0.0.1:{port}", f"unix:{folder}/0.sock", folder / "log"
        hook = [
            "--scheduler-cls",
            "schedtop.engine.vllm.AsyncScheduler",
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
        ]
        limits = ["--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "SCHEDTOP_ATTACH": f"unix:{folder}/%r.sock",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(Path(model).resolve()), *hook, *limits]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--served-model-name", "m", "--enforce-eager"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder,
            )

    def await_ready(self) -> None:
        from tests.vllm.waiting import await_ready

        await_ready(self.process, self.url, self.log)

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)


class Listener:
    """Collects a server's records on a thread of its own."""

    def __init__(self, address: str) -> None:
        self.link = ChannelClient.connect(address, read_only=True)
        self.header: Header | None = None
        self.records: list[StepRecord] = []
        self.reported_s = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(ChannelError):
            while True:
                message = self.link.receive(1.0)
                if isinstance(message, Header):
                    self.header = message
                if isinstance(message, StepRecord):
                    self.records.append(message)
                    self.reported_s = time.monotonic()

    def session(self, url: str, load: Load, seconds: float) -> Session:
        """Send a load; the header, the records of its steps, and their report."""
        start, report = len(self.records), Report()
        asyncio.run(send(url, load.requests(seconds), salt=start))
        while time.monotonic() - self.reported_s < SETTLES_S:
            time.sleep(0.1)
        records = self.records[start:]
        for record in records:
            report.add(record)
        assert self.header is not None and records, "the server reported nothing"
        return self.header, records, report.as_dict()


async def send(url: str, requests: list[tuple[float, int, int]], salt: int) -> None:
    """Each request at its time, streaming; no two prompts are equal, whatever the salt."""
    async with httpx.AsyncClient(timeout=900) as client:

        async def one(place: int, after_s: float, prompt: int, output: int) -> None:
            await asyncio.sleep(after_s)
            rng = random.Random(f"{salt} {place}")
            question = {"model": "m", "prompt": [rng.randrange(100, 40_000) for _ in range(prompt)], "stream": True}
            question |= {"max_tokens": output, "temperature": 0, "ignore_eos": True}
            async with client.stream("POST", f"{url}/v1/completions", json=question) as answer:
                async for _ in answer.aiter_lines():
                    pass

        await asyncio.gather(*(one(place, *request) for place, request in enumerate(requests)))


def sessions(python: str, model: str, seconds: float, folder: Path) -> tuple[list[Session], list[Session], Path]:
    """Sessions of the fitted loads, two of the predicted one, and a trace of that one."""
    server = Server(python, model, folder)
    try:
        server.await_ready()
        listener = Listener(server.address)
        listener.session(server.url, WARM_UP, 10.0)
        loads = (FITTED, PREDICTED, LONE, PREDICTED, FITTED)
        before, one, lone, other, after = (listener.session(server.url, load, seconds) for load in loads)
    finally:
        server.close()
    return [before, lone, after], [one, other], _trace(one[1], folder / "predicted.csv")


def _trace(records: list[StepRecord], path: Path) -> Path:
    """The arrivals as a trace."""
    arrivals = [arrival for record in records for arrival in record.arrivals]
    rows = [f"{item.arrival_s:.6f},{item.prompt_tokens},{item.max_tokens}\n" for item in arrivals]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    return path
