"""A change on trial lives in the engine: whoever is connected sees it, and it ends when nobody is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from schedtop.engine.channel.spawn import EngineProcess, start_engine
from schedtop.engine.contract import telemetry as t
from schedtop.engine.contract.commands import EndTrial, Pause, SetKnobs
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec

LONG_S = 3600.0
PATIENCE_S = 300.0


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    config = EngineConfig(
        workload=WorkloadSpec(source="mixed", rate=20.0), real_time=True, scheduler={"max_num_seqs": 64}
    )
    with start_engine(config) as engine:
        yield engine


class Console:
    """One connection, its knobs and what it knows of a trial, as a real console folds them."""

    def __init__(self, engine: EngineProcess) -> None:
        self.client = engine.connect(PATIENCE_S)
        self.knobs: dict[str, Any] = {}
        self.trial: t.Trial | None = None
        self.said: list[str] = []
        self._commands = 0
        self._replies: dict[int, t.Reply] = {}
        while not self.knobs:
            self.take()

    def take(self) -> None:
        message = self.client.receive(PATIENCE_S)
        assert message is not None, "the engine fell silent"
        match message:
            case t.Snapshot():
                self.knobs, self.trial = dict(message.knobs), message.trial
            case t.StepRecord():
                self.knobs |= {change.name: change.new for change in message.knobs}
            case t.Notice(trial=t.Trial() as trial):
                self.trial = trial if trial.left_s > 0 else None
                self.said.append(message.text)
            case t.Reply():
                self._replies[message.command] = message

    def ask(self, kind: Any, *arguments: Any, **settings: Any) -> t.Reply:
        self._commands += 1
        self.client.send(kind(self._commands, *arguments, **settings))
        while self._commands not in self._replies:
            self.take()
        return self._replies[self._commands]

    def until(self, seqs: int) -> None:
        """Until the knob has this value and no trial is pending."""
        while self.trial is not None or self.knobs["max_num_seqs"] != seqs:
            self.take()


def on_trial(console: Console, value: int = 9, seconds: float = LONG_S, **settings: Any) -> t.Reply:
    return console.ask(SetKnobs, {"max_num_seqs": value}, trial_s=seconds, **settings)


def test_a_second_console_sees_the_trial_and_may_confirm_it(engine: EngineProcess) -> None:
    first = Console(engine)
    assert on_trial(first).ok
    second = Console(engine)
    trial = second.trial
    assert trial is not None and trial.values == {"max_num_seqs": 9} and trial.before == {"max_num_seqs": 64}
    assert 0 < trial.left_s <= LONG_S
    assert second.knobs["max_num_seqs"] == 9
    assert second.ask(EndTrial, trial.number, True).ok
    first.until(9)
    assert any("confirmed: max_num_seqs 9 stays" in words for words in first.said)
    late = second.ask(EndTrial, trial.number, False)
    assert not late.ok and "over" in late.text
    assert Console(engine).trial is None


def test_a_second_console_may_take_it_back_also_while_the_engine_is_paused(engine: EngineProcess) -> None:
    first, second = Console(engine), Console(engine)
    assert first.ask(Pause).ok
    assert on_trial(first).ok
    while second.trial is None:
        second.take()
    assert second.ask(EndTrial, second.trial.number, False).ok
    first.until(64)
    assert any("back to max_num_seqs 64" in words for words in first.said)


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_it_goes_back_in_time(engine: EngineProcess, paused: bool) -> None:
    console = Console(engine)
    if paused:
        assert console.ask(Pause).ok
    assert on_trial(console, seconds=0.2).ok
    console.until(64)
    assert any("not confirmed in time" in words for words in console.said)


CONSOLE = """
import sys, time
from schedtop.engine.contract import telemetry as t
from schedtop.engine.channel import ChannelClient
from schedtop.engine.contract.commands import SetKnobs
client = ChannelClient.connect(sys.argv[1], 300)
command = SetKnobs(1, {"max_num_seqs": 9}, trial_s=float(sys.argv[2]))
client.send(command)
while True:
    message = client.receive(300)
    if isinstance(message, t.Reply):
        if message.ok:
            print("on trial", flush=True)
        else:
            client.send(command)
"""


def test_it_goes_back_when_its_console_was_killed(engine: EngineProcess) -> None:
    Console(engine).client.close()  # it serves
    console = subprocess.Popen([sys.executable, "-c", CONSOLE, engine.address, "1.0"], stdout=subprocess.PIPE)
    assert console.stdout and console.stdout.readline() == b"on trial\n"
    console.kill()
    console.wait()
    console.stdout.close()
    Console(engine).until(64)


def test_a_broken_slo_takes_it_back_at_once(engine: EngineProcess) -> None:
    console = Console(engine)
    assert on_trial(console, slo_s={"itl": 1e-6}).ok
    console.until(64)
    assert any("ITL p95" in words and "broke its SLO" in words for words in console.said)


def test_a_kept_slo_does_not(engine: EngineProcess) -> None:
    console = Console(engine)
    clock_s = 0.0
    assert on_trial(console, slo_s={"itl": 1e6, "ttft": 1e6}).ok
    while clock_s < 4.0:
        message = console.client.receive(PATIENCE_S)
        assert not isinstance(message, t.Notice)
        clock_s = message.end_s if isinstance(message, t.StepRecord) else clock_s
    assert Console(engine).trial is not None


def test_what_cannot_be_tried_is_refused(engine: EngineProcess) -> None:
    console = Console(engine)
    for settings, words in (
        ({"seconds": 0.0}, "must be above 0"),
        ({"seconds": float("nan")}, "must be above 0"),
        ({"slo_s": {"tpot": 0.1}}, "it knows ttft, itl"),
        ({"value": 0}, "at least 1"),
    ):
        reply = on_trial(console, **settings)
        assert not reply.ok and words in reply.text
    assert console.knobs["max_num_seqs"] == 64 and console.trial is None
    assert on_trial(console).ok
    reply = on_trial(console, value=5)
    assert not reply.ok and "max_num_seqs 9 is on trial" in reply.text


def test_a_change_for_good_ends_the_trial_of_its_knob(engine: EngineProcess) -> None:
    console = Console(engine)
    values = {"max_num_batched_tokens": 512, "watermark": 0.1}
    assert console.ask(SetKnobs, values, trial_s=LONG_S).ok
    assert console.ask(SetKnobs, {"watermark": 0.1}).ok
    while console.trial is None or console.trial.values != {"max_num_batched_tokens": 512}:
        console.take()
    assert console.ask(SetKnobs, {"max_num_batched_tokens": 1024}).ok
    while console.trial is not None:
        console.take()
    assert Console(engine).knobs["watermark"] == 0.1


def test_what_a_change_resets_comes_back_with_it(engine: EngineProcess) -> None:
    """`max_num_batched_tokens` sets the token budget, too."""
    console = Console(engine)
    assert console.ask(SetKnobs, {"max_num_scheduled_tokens": 300}).ok
    assert console.ask(SetKnobs, {"max_num_batched_tokens": 512}, trial_s=LONG_S).ok
    while console.trial is None:
        console.take()
    assert console.ask(EndTrial, console.trial.number, False).ok
    knobs = Console(engine).knobs
    assert (knobs["max_num_scheduled_tokens"], knobs["max_num_batched_tokens"]) == (300, 2048)


def test_the_first_step_waits_for_its_console() -> None:
    config = EngineConfig(workload=WorkloadSpec(source="mixed", rate=50.0), join_within_s=600.0)
    with start_engine(config) as engine, engine.connect(PATIENCE_S) as client:
        while not isinstance(message := client.receive(PATIENCE_S), t.Snapshot):
            assert message is not None
        assert message.step == 0
