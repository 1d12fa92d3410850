"""A real model on this machine's CPU, served over HTTP by schedtop and by vLLM, to the same client.

    python benchmarks/cpu_serving.py MODEL_FOLDER --vllm PROGRAM [--concurrency 1,8,16] [--requests 24] [--tokens 32]

All servers stay up and are loaded in turn, round after round, so that a machine that grows slower meets all alike.
Output tokens/s above 1 and TTFT below 1 are schedtop's lead; the ratios are of medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from cpu_load import make_prompts
from http_client import Outcome, load, quantile

PROGRAM = Path(sys.executable).with_name("schedtop")
READY_WITHIN_S = 600.0
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
LIMITS = ["--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def server(command: list[str | Path], port: int) -> Iterator[str]:
    """A server that is ready, until the block ends."""
    url = f"http://127.0.0.1:{port}"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, env={**os.environ, **QUIET}, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        until_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until_s:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {process.returncode}") from None
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # it has a session of its own
            process.wait()


def commands(model: str, vllm: str, modes: list[str]) -> dict[str, tuple[list[str | Path], int]]:
    found: dict[str, tuple[list[str | Path], int]] = {}
    port = free_port()
    ours: list[str | Path] = [PROGRAM, "serve", "--device", "cpu", "--model", model, "--dtype", "bfloat16", *LIMITS]
    found["schedtop"] = [*ours, "--http", f"127.0.0.1:{port}", "--served-model-name", "m"], port
    for mode in modes:
        port = free_port()
        peer: list[str | Path] = [vllm, "serve", model, "--dtype", "bfloat16", *LIMITS, "--served-model-name", "m"]
        peer += ["--host", "127.0.0.1", "--port", str(port), *(["--enforce-eager"] if mode == "eager" else [])]
        found[f"vLLM {mode}"] = peer, port
    return found


def measure(url: str, prompts: list[str], tokens: int, concurrency: int) -> Outcome:
    bodies = [
        {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        for prompt in prompts
    ]
    outcome = asyncio.run(load(url, bodies, concurrency))
    if outcome.errors:
        raise SystemExit(f"{url}: {outcome.errors[0]}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--concurrency", default="1,8,16")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the servers end with it
    with ExitStack() as stack:
        modes = given.modes.split(",")
        urls = {
            name: stack.enter_context(server(command, port))
            for name, (command, port) in commands(given.model, given.vllm, modes).items()
        }
        for url in urls.values():
            measure(url, make_prompts(4, 99), 8, 4)
        for concurrency in map(int, given.concurrency.split(",")):
            seen: dict[str, list[Outcome]] = {name: [] for name in urls}
            count = max(given.requests * concurrency // 16, 4)
            for turn in range(given.rounds):
                prompts = make_prompts(count, turn * 100 + concurrency)
                for name, url in urls.items():
                    seen[name].append(outcome := measure(url, prompts, given.tokens, concurrency))
                    print(f"  {concurrency} concurrent, {name}: {outcome.tokens_per_s:.1f} tokens/s", flush=True)
            report(concurrency, seen)


def report(concurrency: int, seen: dict[str, list[Outcome]]) -> None:
    rates = {name: median(outcome.tokens_per_s for outcome in outcomes) for name, outcomes in seen.items()}
    ttfts = {name: median(quantile(outcome.ttft_s, 0.5) for outcome in outcomes) for name, outcomes in seen.items()}
    for name in seen:
        line = f"{concurrency:3} concurrent, {name:14}: {rates[name]:7.1f} tokens/s, TTFT p50 {ttfts[name]:6.2f} s"
        if name != "schedtop":
            line += f"; schedtop's over it: rate {rates['schedtop'] / rates[name]:.2f}"
            line += f", TTFT {ttfts['schedtop'] / ttfts[name]:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
