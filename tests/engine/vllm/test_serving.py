"""A console over a real socket on a hooked stub scheduler."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.cli.set_limits import RunningEngine, set_all, set_everywhere
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.commands import Abort, Command, Drain, Pause, SetKnobs, StepOnce
from schedtop.engine.contract.telemetry import Bye, Header, Outgoing, Reply, Snapshot, StepRecord
from schedtop.engine.serving.flight.files import is_flying
from schedtop.engine.vllm.plugin import hooked, wrap_core

from tests.engine.vllm.stub import Request, scheduler_of


class Console:
    """Keeps all that came."""

    def __init__(self, address: str, recent: bool = False) -> None:
        self.link = ChannelClient.connect(address, recent=recent)
        self.messages: list[Outgoing] = []

    def until(self, found: Callable[[Outgoing], bool]) -> Any:
        """The first message, old or new, that is one."""
        seen = 0
        for _ in range(2000):
            for message in self.messages[seen:]:
                if found(message):
                    return message
            seen = len(self.messages)
            message = self.link.receive(0.05)
            if message is not None:
                self.messages.append(message)
        raise AssertionError(f"it never came among {len(self.messages)} messages")

    def ask(self, command: Command) -> Reply:
        self.link.send(command)
        return self.until(lambda message: isinstance(message, Reply) and message.command == command.id)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Builds hooked schedulers that serve at `tmp_path/%r.sock`; ends them."""
    begun: list[Any] = []
    monkeypatch.setenv("SCHEDTOP_ATTACH", f"unix:{tmp_path}/%r.sock")

    def make(version: str = "0.32", **settings: Any) -> Any:
        begun.append(hooked(scheduler_of(version, **settings))())
        return begun[-1]

    yield make
    for scheduler in begun:
        scheduler.shutdown()


def step(scheduler: Any, times: int = 1) -> None:
    for _ in range(times):
        scheduler.update_from_output(scheduler.schedule())


def test_a_console_gets_header_snapshot_and_every_step(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve(rank=3)
    console = Console(f"unix:{tmp_path}/3.sock")
    header = console.until(lambda message: isinstance(message, Header))
    assert (header.engine, header.source, header.model, header.num_blocks) == ("vllm", "vllm", "stub", 40)
    console.until(lambda message: isinstance(message, Snapshot))
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler, 5)
    last = console.until(lambda message: isinstance(message, StepRecord) and bool(message.finishes))
    assert (last.step, last.finishes[0].output_tokens) == (5, 5)
    scheduler.shutdown()
    assert console.until(lambda message: isinstance(message, Bye)).reason == "vLLM is shutting down"


def test_a_script_that_comes_before_the_step_of_the_last_change_waits_for_it(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    scheduler, address = serve(), f"unix:{tmp_path}/0.sock"
    assert set_everywhere([address], "max_num_seqs=2") == ("set on 1 engine: max_num_seqs=2", "")
    scheduler.add_request(Request("one", 10, 100))
    engine = RunningEngine(ChannelClient.connect(address))
    assert engine.knobs["max_num_seqs"] == 4, "no step has taken it up"
    steps = threading.Thread(target=step, args=(scheduler, 100))
    steps.start()
    assert set_all([engine], {"max_num_seqs": 3}) == ([], "")
    steps.join()
    engine.link.close()


def test_limits_are_checked_before_the_engine_hears_of_them(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    reply = console.ask(SetKnobs(1, {"max_num_seqs": 5}))
    assert (reply.ok, reply.text) == (
        False,
        "max_num_seqs=5: must be at most 4 (start-up ceiling max_seqs_ceiling)",
    )
    reply = console.ask(SetKnobs(2, {"enable_prefix_caching": False}))
    assert reply.text.startswith(
        "enable_prefix_caching cannot be changed on this server: restart vLLM with --enable"
    )
    reply = console.ask(SetKnobs(3, {"max_num_batched_tokens": 8, "max_num_scheduled_tokens": 9}))
    assert reply.text == "max_num_scheduled_tokens=9: must be at most 8 (max_num_batched_tokens)"
    assert console.ask(SetKnobs(4, {"max_num_seqs": 2})).ok
    reply = console.ask(SetKnobs(5, {"max_num_seqs": 3}, expected_version=0))
    assert not reply.ok and "changed meanwhile" in reply.text
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler)
    record = console.until(lambda message: isinstance(message, StepRecord) and bool(message.knobs))
    assert [(change.name, change.new) for change in record.knobs] == [("max_num_seqs", 2)]
    assert scheduler.max_num_active_reqs == 2


def test_what_is_not_the_consoles_is_refused(serve: Callable[..., Any], tmp_path: Path) -> None:
    serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    assert console.ask(Drain(1, now=True)).text.startswith("this server is not the console's")
    assert console.ask(StepOnce(2)).text == "vLLM takes no single steps"
    assert console.ask(Abort(3, 7)).text == "request 7 is not in flight"
    assert "cannot be reached" in console.ask(Pause(4)).text


def test_read_only_lets_consoles_look(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDTOP_ATTACH_READONLY", "1")
    scheduler = serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    reply = console.ask(SetKnobs(1, {"max_num_seqs": 2}))
    assert not reply.ok and "SCHEDTOP_ATTACH_READONLY" in reply.text
    scheduler.add_request(Request("one", 10, 1))
    step(scheduler)
    assert console.until(lambda message: isinstance(message, StepRecord)).finishes


def test_what_an_old_version_lacks_is_told_to_every_console(serve: Callable[..., Any], tmp_path: Path) -> None:
    serve("0.11")
    console = Console(f"unix:{tmp_path}/0.sock")
    assert console.ask(Pause(1)).text.startswith("this vLLM cannot pause admissions")
    header = console.until(lambda message: isinstance(message, Header))
    assert "there is no watermark" in header.settings["missing"]


def test_an_error_of_the_hook_is_told_and_the_server_runs_on(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    console.until(lambda message: isinstance(message, Snapshot))
    for _ in range(3):
        scheduler.schedtop_hook.after_update(object(), {}, "no time")
        scheduler.schedtop_hook.after_schedule(object(), 0.0)
    assert "the hook is off after 3 errors" in console.until(lambda message: isinstance(message, Bye)).reason
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler, 5)
    assert not scheduler.requests


def test_an_address_in_use_leaves_the_server_alone(
    serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve()
    second = serve()
    assert second.schedtop_hook is None
    assert "already listens" in caplog.text
    second.add_request(Request("one", 10, 5))
    step(second, 5)
    assert not second.requests


def test_a_console_that_never_reads_costs_the_engine_nothing(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve(num_blocks=400, max_num_seqs=32, budget=64)
    deaf = ChannelClient.connect(f"unix:{tmp_path}/0.sock")
    for place in range(32):
        scheduler.add_request(Request(f"r{place}", 4, 40))
    while scheduler.requests:
        step(scheduler)
    console = Console(f"unix:{tmp_path}/0.sock")
    console.until(lambda message: isinstance(message, Snapshot | StepRecord) and message.totals.finished == 32)
    deaf.close()


def test_the_thread_ends_with_the_scheduler(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve()
    scheduler.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name == "schedtop"]
    with pytest.raises(ChannelError, match="no engine"):
        ChannelClient.connect(f"unix:{tmp_path}/0.sock")
    assert not os.listdir(tmp_path)


def test_a_console_that_comes_late_gets_the_last_minutes(serve: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = serve()
    first = Console(f"unix:{tmp_path}/0.sock")
    first.until(lambda message: isinstance(message, Snapshot))
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler, 5)
    first.until(lambda message: isinstance(message, StepRecord) and bool(message.finishes))
    late = Console(f"unix:{tmp_path}/0.sock", recent=True)
    assert late.until(lambda message: isinstance(message, Snapshot)).step == 0
    last = late.until(lambda message: isinstance(message, StepRecord) and bool(message.finishes))
    reported = [message for message in late.messages if isinstance(message, StepRecord) and message.executed]
    assert [record.step for record in reported] == [1, 2, 3, 4, 5] and last in first.messages


def test_the_last_minutes_lie_on_disk_where_that_is_asked_for_and_go_in_an_orderly_end(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDTOP_FLIGHT_RECORDER", str(tmp_path / "flights"))
    scheduler = serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    console.until(lambda message: isinstance(message, Snapshot))
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler, 5)
    console.until(lambda message: isinstance(message, StepRecord) and bool(message.finishes))
    [flight] = (tmp_path / "flights").iterdir()
    assert is_flying(flight)
    scheduler.shutdown()
    console.until(lambda message: isinstance(message, Bye))
    assert not flight.exists()


def test_an_engine_that_fails_says_so_and_leaves_its_last_minutes(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Core:
        def __init__(self, scheduler: Any) -> None:
            self.scheduler = scheduler

        def run_busy_loop(self) -> None:
            step(self.scheduler, 1)
            raise RuntimeError("device lost")

        def _handle_client_request(self, request: Any) -> None:
            pass

    monkeypatch.setenv("SCHEDTOP_FLIGHT_RECORDER", str(tmp_path / "flights"))
    wrap_core(Core)
    scheduler = serve()
    console = Console(f"unix:{tmp_path}/0.sock")
    console.until(lambda message: isinstance(message, Snapshot))
    scheduler.add_request(Request("one", 10, 5))
    with pytest.raises(RuntimeError, match="device lost"):
        Core(scheduler).run_busy_loop()
    scheduler.shutdown()
    bye = console.until(lambda message: isinstance(message, Bye))
    assert bye.reason == "vLLM's engine failed: RuntimeError: device lost"
    [flight] = (tmp_path / "flights").iterdir()
    assert flight.exists()


def test_a_folder_that_cannot_be_written_costs_no_server(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCHEDTOP_FLIGHT_RECORDER", str(tmp_path / "file" / "flights"))
    scheduler = serve()
    scheduler.add_request(Request("one", 10, 5))
    step(scheduler, 5)
    console = Console(f"unix:{tmp_path}/0.sock")
    assert console.until(lambda message: isinstance(message, Header)).engine == "vllm"
