"""The Live screen's facts without a screen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from schedtop.console.drawing import text
from schedtop.console.past.history import History
from schedtop.console.status import brief, facts, page, sentence
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.contract.limiters import describe_head
from seat import COMPACT, WIDE, seated
from synthetic import SyntheticEngine

PROGRAM = (sys.executable, "-c", "from schedtop.console.cli.main import main; main()")


def reported(steps: int, rate: float = 12.0) -> History:
    engine = SyntheticEngine(rate=rate, num_blocks=300)
    history = History()
    for message in (engine.header(), engine.snapshot(), *engine.records(steps)):
        history.apply(message)
    return history


def test_the_facts_are_those_of_the_records() -> None:
    history = reported(300)
    latest, found = history.latest, facts(history, [], {"ttft": 0.5})
    assert latest is not None and latest.head is not None
    assert (found["running"], found["waiting"]) == (latest.running, latest.waiting)
    assert found["kv_in_use"] == latest.blocks.held + latest.blocks.shared
    ttft = found["latency"]["ttft"]
    assert ttft["n"] == sum(len(record.ttft_s) for record in history.records)
    waits = [item for item in history.live.requests.values() if item.first_token_s is None]
    assert ttft["open"] == len(waits) > 20 and "p95" in ttft["lower_bound"]
    assert f"p95 >{text.ms_unit(ttft['p95'])}" in brief(found) and f"(n={ttft['n']}+{len(waits)})" in brief(found)
    words = sentence(history, history.now(), [])[0]
    assert describe_head(latest.head) in words and f"{latest.waiting} waiting" in words
    assert words in "\n".join(page(found)) and words in brief(found)
    assert "\x1b" not in "\n".join(page(found))


@pytest.mark.parametrize("device", ["sim:gpt-oss-20b@h100", "sim:llama-3.1-8b@h100"])
def test_kv_groups_and_host_memory_are_told_where_they_are(device: str) -> None:
    scheduler = {} if "oss" in device else {"kv_host_memory_bytes": 2**30}
    engine, history = build_engine(EngineConfig(device=device, scheduler=scheduler)), History()
    for message in (engine.header, engine.snapshot(), *(engine.step() for _ in range(40))):
        if message is not None:
            history.apply(message)
    latest, found = history.latest, facts(history, [], {})
    assert latest is not None
    assert sum(found["kv_groups"].values()) == sum(latest.group_blocks)
    assert (found["host_kv_in_use"], found["host_kv_blocks"]) == (latest.host_blocks[:2] or (None, None))
    words = "\n".join(page(found))
    assert (f", full {found['kv_groups'].get('full')}" in words) == bool(latest.group_blocks) == ("oss" in device)
    assert ("host KV: " in words) == bool(latest.host_blocks) == ("llama" in device)


def test_nothing_is_made_up_before_the_first_step() -> None:
    found = facts(reported(0), [], {})
    assert found["kv_in_use"] is None and found["latency"]["itl"]["p50"] is None
    assert "No requests" in "\n".join(page(found)) and "too few samples (n=0)" in brief(found)


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_one_line_under_the_header_says_what_holds_the_engine_back(size: tuple[int, int]) -> None:
    async with seated(size, steps=300) as seat:
        record = seat.app.history.latest
        assert record is not None and record.head is not None
        assert f"{record.waiting} waiting" in seat.lines[1]


@pytest.fixture
def address() -> Iterator[str]:
    """A running engine's; the folder's path is short, as a socket's must be."""
    flags = ("serve", "--device=sim:llama-3.1-8b@h100", "--workload=mixed", "--rate=8")
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        environ = os.environ | {"PYTHONSAFEPATH": "1", "XDG_RUNTIME_DIR": folder}
        with subprocess.Popen((*PROGRAM, *flags), stderr=subprocess.PIPE, text=True, env=environ) as process:
            assert process.stderr is not None
            line = next((line for line in process.stderr if "listening on" in line), "")
            assert line, "the engine did not start"
            yield "unix:" + line.split()[-1]
            process.send_signal(signal.SIGTERM)
            process.wait()


def test_an_engine_is_asked_once_and_followed_in_plain_lines(address: str) -> None:
    environ = os.environ | {"PYTHONSAFEPATH": "1"}
    once = subprocess.run((*PROGRAM, "status", address, "--json"), capture_output=True, check=True, env=environ)
    found = json.loads(once.stdout)
    assert found["device"] == "sim:llama-3.1-8b@h100" and found["step"] > 0
    with subprocess.Popen((*PROGRAM, "attach", address, "--plain"), stdout=subprocess.PIPE, env=environ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(2)]
        child.send_signal(signal.SIGINT)
    assert all(line.startswith(b"step ") and b"\x1b" not in line for line in lines) and lines[0] != lines[1]
