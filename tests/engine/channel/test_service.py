"""The engine's process from outside: greeting, commands, its owner's death, signals, crashes, exit codes."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from schedtop.engine.channel import ChannelClient, ChannelClosedError, ChannelError
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import Abort, Drain, Pause, Resume, SetKnobs, StepOnce
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.recording import Recording

FAKE = Path(__file__).parent / "fake.py"
Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the real service around a fake engine with the given arguments."""
    started: list[EngineProcess] = []

    def start(settings: dict[str, Any] | None = None, **arguments: int) -> EngineProcess:
        config = EngineConfig(socket=str(tmp_path / "e.sock"), **(settings or {}))
        process = subprocess.Popen(
            [sys.executable, str(FAKE)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "FAKE_ENGINE": " ".join(f"{k}={v}" for k, v in arguments.items())},
        )
        assert process.stdin
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()
        started.append(EngineProcess(process, str(config.socket)))
        return started[-1]

    yield start
    for engine in started:
        engine.process.kill()
        engine.close()


def until(client: ChannelClient, kind: type[Any]) -> Any:
    while True:
        message = client.receive(20)
        assert message is not None, f"waited in vain for {kind.__name__}"
        if isinstance(message, kind):
            return message


def test_a_console_follows_the_engine_and_commands_it(start: Start) -> None:
    with start({"real_time": True}) as engine, engine.connect() as client:
        assert until(client, t.Header).engine == "fake"
        seq = until(client, t.Snapshot).seq
        assert [until(client, t.StepRecord).seq for _ in range(3)] == [seq + 1, seq + 2, seq + 3]
        client.send(SetKnobs(7, {"max_num_seqs": 3}, expected_version=1))
        assert until(client, t.Reply) == t.Reply(7, True, "set", 2, ["8 running, cap 3: 5 must finish first"])
        client.send(SetKnobs(8, {"nonsense": 3}))
        assert until(client, t.Reply) == t.Reply(8, False, "no knob is called 'nonsense'", 2)
        client.send(StepOnce(9))
        assert not until(client, t.Reply).ok
        client.send(Abort(10, 99))
        assert until(client, t.Reply).text == "request 99 is not in flight"
        client.send(Pause(11))
        assert until(client, t.Reply).command == 11
        client.send(StepOnce(12))
        assert until(client, t.Reply).ok
        first = until(client, t.StepRecord).seq
        client.send(StepOnce(13))
        assert until(client, t.StepRecord).seq == first + 1, "paused: only the steps asked for"
        client.send(Resume(14))
        assert until(client, t.StepRecord).seq == first + 2
        client.send(Drain(15))
        assert until(client, t.Bye).reason == "drained"
        assert engine.process.wait(20) == 0


def test_a_gap_in_one_console_disturbs_nobody(start: Start) -> None:
    """A console that does not read at all; the engine runs flat out and another console sees every step."""
    with start({"duration_s": 50.0}, num_rows=64) as engine, engine.connect(), engine.connect() as client:
        last, dropped = until(client, t.Snapshot).seq, 0
        while True:
            message = client.receive(20)
            if isinstance(message, t.Bye):
                break
            if isinstance(message, t.Snapshot):
                dropped += message.dropped
                last = message.seq
            elif isinstance(message, t.StepRecord):
                assert message.seq == last + 1
                last = message.seq
        assert last + (message.step - last) == message.step >= 4999


def test_the_owners_end_is_the_engines_end(start: Start) -> None:
    engine = start()
    with engine.connect() as client:
        until(client, t.StepRecord)
        assert engine.process.stdin
        engine.process.stdin.close()
        assert "owned this engine is gone" in until(client, t.Bye).reason
    assert engine.process.wait(20) == 0
    assert not Path(engine.address).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(start: Start, number: signal.Signals) -> None:
    engine = start()
    with engine.connect() as client:
        until(client, t.StepRecord)
        engine.process.send_signal(number)
        assert until(client, t.Bye).reason == f"the engine got {number.name}"
    assert engine.process.wait(20) == 0


@pytest.mark.parametrize("how", ["signal", "owner", "command"])
def test_loading_is_greeted_and_can_be_ended(start: Start, how: str) -> None:
    engine = start(never_loads=1)
    with engine.connect() as client:
        while until(client, t.Stage).name != "loading weights":
            pass
        client.send(Pause(1))
        reply = until(client, t.Reply)
        assert not reply.ok and "loading" in reply.text
        if how == "signal":
            engine.process.terminate()
        elif how == "owner":
            assert engine.process.stdin
            engine.process.stdin.close()
        else:
            client.send(Drain(2))
        assert until(client, t.Bye).step == 0
    assert engine.process.wait(20) == 0


def test_a_crash_is_told_in_one_line(start: Start) -> None:
    engine = start(fails_at=5)
    try:
        with engine.connect() as client:
            bye = until(client, t.Bye)
            assert (bye.reason, bye.step) == (
                "the engine failed: RuntimeError: the fake engine was told to fail",
                4,
            )
    except ChannelClosedError:
        pass  # it was gone before it read that a console came
    except ChannelError as error:
        assert "told to fail" in str(error)
    assert engine.process.wait(20) == 1
    assert engine.exit_cause() == "the engine failed: RuntimeError: the fake engine was told to fail"


def test_a_killed_engine_is_seen_at_once(start: Start) -> None:
    engine = start()
    with engine.connect() as client:
        until(client, t.StepRecord)
        engine.process.kill()
        with pytest.raises(ChannelClosedError):
            while client.receive(20) is not None:
                pass
    engine.process.wait(20)
    assert engine.exit_cause() == "the engine was killed by signal 9"


def test_a_suspended_engine_still_ends_in_order(start: Start) -> None:
    engine = start()
    with engine.connect() as client:
        until(client, t.StepRecord)
        engine.process.send_signal(signal.SIGSTOP)
        client.send(Drain(1, now=True))
        assert engine.close(300) == 0


def test_an_engine_that_hears_nothing_is_killed_and_leaves_no_socket(start: Start) -> None:
    engine = start()
    with engine.connect() as client:
        until(client, t.StepRecord)
        client.send(Abort(1, -1))
        assert engine.close(0.1) == -signal.SIGKILL
    assert not Path(engine.address).exists()


def test_the_duration_ends_the_run(start: Start) -> None:
    engine = start({"duration_s": 0.05})
    assert engine.process.wait(20) == 0
    assert engine.exit_cause() == "the engine ended"


def test_the_end_of_the_workload_is_told_and_the_engine_stays(start: Start) -> None:
    engine = start({"real_time": True}, steps=3)
    with engine.connect() as client:
        assert "workload has ended" in until(client, t.Notice).text
        client.send(Pause(1))
        assert until(client, t.Reply).ok


def test_every_step_is_recorded_whatever_consoles_do(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "a.schedtop"
    engine = start({"record": str(path), "duration_s": 2.995})
    with engine.connect():
        assert engine.process.wait(20) == 0
    with Recording(path) as recording:
        assert recording.truncated is None
        assert [record.seq for record in recording.records()] == list(range(1, 301))


def test_a_full_disk_is_a_notice_and_serving_goes_on(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "a.schedtop"
    engine = start({"record": str(path), "real_time": True}, num_rows=200)
    resource.prlimit(engine.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
    with engine.connect() as client:
        notice = until(client, t.Notice)
        assert notice.level == "error"
        assert re.fullmatch(r"recording stopped: cannot write .*a\.schedtop: File too large; .*", notice.text)
        seq = until(client, t.StepRecord).seq
        assert until(client, t.StepRecord).seq == seq + 1
    with Recording(path) as recording:
        assert recording.truncated and recording.num_records > 0


def test_metrics_are_served_while_it_runs(start: Start) -> None:
    with start({"metrics_port": 0, "real_time": True}) as engine, engine.connect() as client:
        url = until(client, t.Notice).text.removeprefix("metrics at ")
        until(client, t.StepRecord)
        with urllib.request.urlopen(url, timeout=20) as response:
            assert b"schedtop_steps_total" in response.read()


def test_what_cannot_be_opened_is_one_line_and_exit_code_2(start: Start, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("precious")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for settings, line in (
            ({"record": str(tmp_path / "taken")}, "taken exists already: choose another name, or remove it first"),
            ({"metrics_port": taken.getsockname()[1]}, "Address already in use; choose another --metrics-port"),
        ):
            engine = start(settings)
            assert engine.process.wait(20) == 2
            cause = engine.exit_cause()
            assert cause and cause.endswith(line)
            assert len(engine.stderr_tail()) == 1
    assert (tmp_path / "taken").read_text() == "precious"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "config is not usable"),
        (b'{"seed": "x"}', r"Expected `int`, got `str` - at `\$.seed`"),
        (b'{"socket": "tcp:0.0.0.0:1"}', "only a loopback host"),
        (b"[" * 100_000, "config is not usable"),
    ],
)
def test_a_bad_config_is_one_line_and_exit_code_2(line: bytes, reason: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "schedtop.engine.serving.service"],
        input=line + b"\n",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
    (text,) = done.stderr.decode().splitlines()
    assert re.search(reason, text)


def test_start_engine_reports_why_it_ended(fake: ModuleType) -> None:
    with start_engine(EngineConfig(socket="tcp:0.0.0.0:1")) as engine:
        with pytest.raises(ChannelError, match="only a loopback host"):
            engine.connect()
        engine.process.wait(20)
        with pytest.raises(ChannelError, match="only a loopback host"):
            engine.connect()
