"""`schedtop record`: of an engine of ours, and of a hooked server from its start."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.record import LinkRecorder
from schedtop.console.cli.record_process import RecordProcess
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import encode
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.contract.commands import SetKnobs
from schedtop.engine.contract.telemetry import Bye, FinishReason, Reply, StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.recording import Recording, RecordingError
from schedtop.engine.vllm.limits import set_limits
from schedtop.engine.vllm.plugin import hooked

from tests.engine.vllm.drive import Run
from tests.engine.vllm.stub import PauseState, Request, Status, scheduler_of

PROGRAM = [sys.executable, "-P", "-c", "from schedtop.console.cli.start import program; program()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


def test_an_engine_that_runs_is_recorded_until_it_ends(tmp_path: Path) -> None:
    address, path = f"unix:{tmp_path}/e.sock", tmp_path / "run.rec"
    flags = ["--workload", "mixed", "--num-blocks", "500", "--listen", address]
    recorder = [*PROGRAM, "record", address, "-o", str(path)]
    with subprocess.Popen([*PROGRAM, "serve", *flags], stderr=subprocess.PIPE, text=True) as engine:
        assert engine.stderr is not None and "listening" in engine.stderr.readline()
        with (
            subprocess.Popen(recorder, stderr=subprocess.PIPE, text=True) as process,
            ChannelClient.connect(address) as link,
        ):
            while not path.exists():
                link.receive(0.1)
            link.send(SetKnobs(1, {}, dry_run=True))
            for kind in (Reply, StepRecord):  # a step after the answer is one that is recorded, too
                while not isinstance(link.receive(1.0), kind):
                    pass
            engine.send_signal(signal.SIGINT)
            reported = process.communicate(timeout=120)[1]
        engine.communicate(timeout=60)
    assert process.returncode == 0, reported
    with Recording(path) as recording:
        assert recording.truncated is None and recording.num_records > 0
        assert f"{recording.num_records} steps, from " in reported
    assert run("replay", str(path)).returncode == 2  # no terminal, but the file is one it takes
    assert "records" in run("info", str(path)).stdout


def test_ctrl_c_ends_a_recording_that_is_whole(tmp_path: Path) -> None:
    address, path = f"unix:{tmp_path}/e.sock", tmp_path / "run.rec"
    with ChannelServer(address) as server:
        source = Run("0.32")
        server.ready(source.hook.facts.header, lambda: source.maker.snapshot(0.0))
        with subprocess.Popen([*PROGRAM, "record", address, "-o", str(path)], stderr=subprocess.PIPE) as process:
            while not path.exists():
                server.poll(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    with Recording(path) as recording:
        assert recording.truncated is None and not recording.num_records


def test_a_consoles_recording_ends_with_the_engine_and_says_so(tmp_path: Path) -> None:
    address, recording = f"unix:{tmp_path}/e.sock", RecordProcess(f"unix:{tmp_path}/e.sock")
    source = Run("0.32")
    with ChannelServer(address) as server:
        server.ready(source.hook.facts.header, lambda: source.maker.snapshot(0.0))
        recording.start(tmp_path / "run.rec")
        while not (tmp_path / "run.rec").exists():
            server.poll(0.05)
    while (words := recording.ended()) is None:
        threading.Event().wait(0.02)
    assert words == f"{tmp_path}/run.rec: 0 steps, from the engine's start"


def test_nobody_there_is_bad_input(tmp_path: Path) -> None:
    done = run("record", f"unix:{tmp_path}/none.sock", "-o", str(tmp_path / "x.rec"))
    assert done.returncode == 2 and "no engine at" in done.stderr
    assert not (tmp_path / "x.rec").exists()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hooked stub scheduler that serves at `tmp_path/v.sock`."""
    monkeypatch.setenv("SCHEDTOP_ATTACH", f"unix:{tmp_path}/v.sock")
    scheduler = hooked(scheduler_of("0.32", caching=False))()
    yield scheduler
    scheduler.shutdown()


def step(scheduler: Any) -> None:
    scheduler.update_from_output(scheduler.schedule())


def recorded(scheduler: Any, path: Path, address: str, num_finishes: int) -> None:
    """Record until so many requests have ended."""
    link = ChannelClient.connect(address, from_start=True)
    recorder = LinkRecorder(link, str(path))
    thread = threading.Thread(target=recorder.run, args=(30.0,))
    thread.start()
    while recorder.num_finished < num_finishes and thread.is_alive():
        thread.join(0.02)
    recorder.stopped = True
    thread.join()
    recorder.close()
    link.close()


def test_a_servers_recording_begins_at_its_start_and_is_decided_alike(server: Any, tmp_path: Path) -> None:
    """Nobody listened while it ran: a pause of admissions, an abort and a changed limit included."""
    hook, path = server.schedtop_hook, tmp_path / "v.rec"
    for place in range(6):
        server.add_request(Request(f"r{place}", 9 + place, 12))
    for count in range(60):
        if count == 2:
            hook.pause(True)
        if count == 9:
            assert server.pause_state is PauseState.PAUSED_NEW
            hook.pause(False)
        if count == 15:
            server.finish_requests("r5", Status.FINISHED_ABORTED)
        if count == 40:  # idle by then
            hook.commands.append(lambda hook: set_limits(hook, {"max_num_scheduled_tokens": 5}, "test"))
            hook.obey()
            server.add_request(Request("late", 21, 3))
        if server.requests:
            step(server)
    recorded(server, path, f"unix:{tmp_path}/v.sock", 7)
    with Recording(path) as recording:
        verdict = verify_recording(recording)
        finishes = [finish for record in recording.records() for finish in record.finishes]
    assert verdict.equal, str(verdict.difference)
    assert (verdict.steps, verdict.admissions) == (recording.num_steps, 7)
    assert sorted(finish.reason for finish in finishes) == [FinishReason.ABORT, *[FinishReason.LENGTH] * 6]


def test_a_time_that_is_over_cuts_off_nothing_that_was_told(server: Any, tmp_path: Path) -> None:
    """The records since the start come all at once, and take longer than a short time to write."""
    for place in range(4):
        server.add_request(Request(f"r{place}", 9, 12))
    steps = 0
    while server.requests:
        step(server)
        steps += 1
    address = f"unix:{tmp_path}/v.sock"
    recorded(server, tmp_path / "first.rec", address, 4)  # its thread has told all by then
    link = ChannelClient.connect(address, from_start=True)
    recorder = LinkRecorder(link, str(tmp_path / "v.rec"))
    recorder.run(0.0)
    recorder.close()
    link.close()
    with Recording(tmp_path / "v.rec") as recording:
        assert recording.num_steps == steps


def test_what_cannot_be_decided_again_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDTOP_ATTACH", f"unix:{tmp_path}/v.sock")
    base = scheduler_of("0.32")

    class Connected(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.connector = object()
            self.scheduler_config.async_scheduling = True

    scheduler = hooked(Connected)()
    scheduler.add_request(Request("one", 4, 1))
    step(scheduler)
    path = tmp_path / "v.rec"
    recorded(scheduler, path, f"unix:{tmp_path}/v.sock", 1)
    scheduler.shutdown()
    with Recording(path) as recording, pytest.raises(RecordingError) as refused:
        verify_recording(recording)
    assert str(refused.value).endswith(
        "is of an engine with a KV connector, whose decisions cannot be made again here"
    )


def test_records_that_were_lost_end_the_recording(tmp_path: Path) -> None:
    address, path = f"unix:{tmp_path}/e.sock", tmp_path / "run.rec"
    source = Run("0.32")
    source.add("one", 4, 30)
    with ChannelServer(address, outbox_bytes=2000) as server:
        server.ready(source.hook.facts.header, lambda: source.maker.snapshot(0.0))
        link = ChannelClient.connect(address)
        while not server.num_joined:
            server.poll(0.05)
        for _ in range(30):
            source.step()
            server.write(source.records[-1], encode(source.records[-1]))
        recorder = LinkRecorder(link, str(path))
        thread = threading.Thread(target=recorder.run, args=(20.0,))
        thread.start()
        while thread.is_alive():
            server.poll(0.02)
        recorder.close()
        link.close()
        server.close(Bye("over", 0), within_s=0.0)
    assert "records were lost: the recording ends at step" in recorder.lost
    with Recording(path) as recording:
        assert recording.truncated is None and 0 < recording.num_steps < 30
