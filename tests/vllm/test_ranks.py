"""Two data-parallel engines of one vLLM server: a stream each, and limits for one or both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from schedtop.engine.contract.telemetry import Header

from tests.vllm.clients import Console, ask, lives_that_ended
from tests.vllm.conftest import Server

COUNT, TOKENS = 12, 8


def schedtop(*words: str) -> subprocess.CompletedProcess[str]:
    program = "from schedtop.console.cli.start import program; program()"
    return subprocess.run([sys.executable, "-P", "-c", program, *words], capture_output=True, text=True)


def test_two_ranks_are_two_streams_and_one_fleet(tmp_path: Path) -> None:
    server = Server(tmp_path, "--data-parallel-size", "2")
    try:
        server.await_ready()
        consoles = [Console(f"unix:{tmp_path}/{rank}.sock") for rank in (0, 1)]
        headers = [console.until(lambda message: isinstance(message, Header)) for console in consoles]
        assert [header.settings["rank"] for header in headers] == [0, 1]
        answers = ask(server.url, "rank", COUNT, TOKENS)
        per_rank = lives_that_ended(consoles, "rank", COUNT)
        assert all(per_rank), "both serve"
        lives = per_rank[0] | per_rank[1]
        assert len(lives) == sum(map(len, per_rank)) == COUNT, "each request is in one stream"
        for answer in answers:
            arrival, finish = lives[answer.name]
            assert (arrival.prompt_tokens, finish.output_tokens) == (answer.prompt_tokens, answer.output_tokens)
            assert finish.reason == answer.reason == "length"
        limits_are_set_on_all_or_none(tmp_path)
    finally:
        server.close()


def limits_are_set_on_all_or_none(folder: Path) -> None:
    def limits() -> list[tuple[int, int]]:
        shown = json.loads(schedtop("knobs", both, "--json").stdout)
        values = [{row["name"]: row["value"] for row in each["knobs"]} for each in shown["engines"]]
        return [(each["max_num_seqs"], each["max_num_batched_tokens"]) for each in values]

    both, second = f"unix:{folder}/*.sock", f"unix:{folder}/1.sock"
    assert schedtop("knobs", both, "--set", "max_num_seqs=4").returncode == 0
    assert schedtop("knobs", second, "--set", "max_num_batched_tokens=100").returncode == 0
    assert limits() == [(4, 512), (4, 100)]
    refused = schedtop("knobs", both, "--set", "max_num_seqs=2", "--set", "max_num_scheduled_tokens=200")
    assert refused.returncode == 2 and "must be at most 100" in refused.stderr
    assert limits() == [(4, 512), (4, 100)]
