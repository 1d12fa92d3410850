"""A real engine that is killed: what it leaves on disk, who offers it, and what opens it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.recording.reader import Recording

PATIENCE_S = 120.0
PROGRAM = [sys.executable, "-P", "-c", "from schedtop.console.cli.start import program; program()"]


class Home:
    """A state folder of its own, and the programs run with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self.address = f"unix:{folder}/engine.sock"
        self.engines: list[subprocess.Popen[str]] = []

    def serve(self, *flags: str) -> subprocess.Popen[str]:
        load = ("--device=sim:llama-3.1-8b@h100", "--workload=mixed", "--rate=8")
        self.engines.append(
            subprocess.Popen(
                [*PROGRAM, "serve", f"--listen={self.address}", *load, *flags],
                env=self.environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.engines[-1]

    def joined(self, engine: subprocess.Popen[str]) -> ChannelClient:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ChannelClient.connect(self.address)
            except ChannelError:
                assert engine.poll() is None and time.monotonic() < until_s
                time.sleep(0.05)

    def steps(self, link: ChannelClient, span_s: float) -> list[StepRecord]:
        """What comes until so much of the engine's time has passed."""
        found: list[StepRecord] = []
        while not found or found[-1].end_s - found[0].end_s < span_s:
            message = link.receive(PATIENCE_S)
            if isinstance(message, StepRecord):
                found.append(message)
        return found

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *arguments], env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def flights(self) -> list[Path]:
        root = self.folder / "schedtop" / "flights"
        return sorted(root.iterdir()) if root.exists() else []


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for engine in home.engines:
        engine.kill()
        engine.communicate()


def test_a_killed_engine_leaves_all_but_its_last_second(home: Home) -> None:
    engine = home.serve()
    with home.joined(engine) as link:
        seen = home.steps(link, 4.0)
        assert any(record.host and record.host[0].cpu > 0 for record in seen)
        engine.kill()
        engine.wait()
    [flight] = home.flights()
    assert stat.S_IMODE(flight.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in flight.iterdir())
    found = home.run("info", str(flight), "--json")
    assert found.returncode == 0, found.stderr
    assert " equal (" in home.run("verify", str(flight)).stdout
    with Recording(flight / "flight.schedtop") as recording:
        kept = list(recording.records(0, recording.num_records))
        assert not recording.truncated and kept[0].seq == 1
        assert kept[-1].end_s > seen[-1].end_s - 1.0
        reported = {record.seq: record.totals for record in seen}
        assert all(record.totals == reported[record.seq] for record in kept if record.seq in reported)


def test_the_next_start_offers_it_once(home: Home) -> None:
    engine = home.serve()
    with home.joined(engine) as link:
        home.steps(link, 1.0)
    engine.kill()
    engine.wait()
    [flight] = home.flights()
    for offered in (True, False):
        engine = home.serve()
        home.joined(engine).close()
        engine.send_signal(signal.SIGTERM)
        words = engine.communicate(timeout=PATIENCE_S)[1]
        assert (f"did not end in order: schedtop replay {flight}" in words) == offered
    assert home.flights() == [flight], "engines that ended in order leave nothing"


def test_in_memory_only(home: Home) -> None:
    engine = home.serve("--no-flight-recorder")
    with home.joined(engine) as link:
        home.steps(link, 1.0)
    engine.kill()
    engine.wait()
    assert home.flights() == []


def test_a_running_engine_is_no_recording(home: Home) -> None:
    engine = home.serve()
    with home.joined(engine) as link:
        home.steps(link, 1.0)
        found = home.run("info", str(home.flights()[0]))
    assert (found.returncode, "still runs" in found.stderr) == (2, True)


def test_few_flights_are_kept(home: Home) -> None:
    engine = home.serve()
    with home.joined(engine) as link:
        home.steps(link, 0.5)
    engine.kill()
    engine.wait()
    [flight] = home.flights()
    for number in range(1, 5):
        shutil.copytree(flight, flight.with_name(f"{flight.name}{number}"))
    with home.joined(home.serve()) as link:
        home.steps(link, 0.5)
    assert len(home.flights()) == 4, "its own, and three of engines that were gone when it began"
