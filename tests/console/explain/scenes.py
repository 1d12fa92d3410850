"""Real engines on a simulated device, served with requests made for one symptom each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from schedtop.console.explain.catalogue import WINDOW
from schedtop.console.explain.diagnosis import Diagnosis
from schedtop.console.explain.finding import Finding
from schedtop.console.explain.log import Log, read
from schedtop.console.explain.window import Bounds
from schedtop.engine.build import build_engine
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Header, Snapshot, StepRecord
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine

Each = Callable[[Engine], None]


def ask(
    number: int,
    prompt: int,
    outputs: int,
    arrival_s: float = 0.0,
    priority: int = 0,
    client_wait_s: float | None = None,
    prefix: int = 0,
    client: str = "",
) -> Request:
    """A request of its own tokens, behind `prefix` tokens that all have in common."""
    tokens = np.random.default_rng(number).integers(0, 100_000, prompt, dtype=np.int32)
    tokens[:prefix] = np.arange(prefix, dtype=np.int32)
    return Request(
        f"r-{number}",
        tokens,
        outputs,
        arrival_s,
        priority,
        sampling=SamplingParams(ignore_eos=True),
        client_wait_s=client_wait_s,
        client=client,
    )


def stream(count: int, every_s: float, prompt: int, outputs: int, first: int = 1000, **more: Any) -> list[Request]:
    """Requests one after another."""
    start_s = more.pop("start_s", 0.0)
    return [ask(first + i, prompt, outputs, start_s + i * every_s, **more) for i in range(count)]


class Listed:
    """A source of given requests."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = sorted(requests, key=lambda request: request.arrival_s)
        self.description: dict[str, Any] = {"source": "listed"}

    def take(self, clock_s: float, step: int) -> list[Request]:
        taken = [request for request in self.requests if request.arrival_s <= clock_s]
        self.requests = self.requests[len(taken) :]
        return taken

    def next_arrival_s(self) -> float | None:
        return self.requests[0].arrival_s if self.requests else None

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        raise AssertionError("a list has no rate")


class SlowAtTimes:
    """The simulated worker, but every so many steps it takes several times as long."""

    simulated = True

    def __init__(self, worker: Any, every: int, times: float) -> None:
        self.worker, self.every, self.times, self.count = worker, every, times, 0

    def execute(self, plan: StepPlan) -> StepResult:
        result: StepResult = self.worker.execute(plan)
        self.count += 1
        if self.count % self.every == 0:
            assert result.elapsed_s is not None
            result.elapsed_s *= self.times
        return result


@dataclass
class Run:
    """What an engine told, from its header to its last record."""

    header: Header
    snapshot: Snapshot
    records: list[StepRecord] = field(default_factory=list)

    @property
    def messages(self) -> list[Any]:
        return [self.header, self.snapshot, *self.records]

    def window(self, span_s: float = WINDOW.value) -> list[StepRecord]:
        """The executed records of the last `span_s` seconds: what a look at the end rests on."""
        end_s = self.records[-1].end_s
        return [record for record in self.records if record.executed and record.end_s > end_s - span_s]

    def findings(self, bounds: Bounds | None = None, silent_s: float | None = None) -> dict[str, Finding]:
        """What a look at the end finds, by id."""
        diagnosis = Diagnosis(bounds=bounds)
        for message in self.messages:
            diagnosis.take(message)
        return {finding.id: finding for finding in diagnosis.findings(silent_s)}

    def log(self, bounds: Bounds | None = None) -> Log:
        """What looks all along find."""
        return read(self.messages, Log(bounds=bounds))


def serve(
    source: Sequence[Request] | WorkloadSpec,
    until_s: float = 20.0,
    each: Each | None = None,
    slow: tuple[int, float] | None = None,
    **scheduler: Any,
) -> Run:
    """Serve requests, or a workload, until the engine's clock reaches `until_s` or nothing is left.

    `each` is called before every step; `slow` makes every n-th step take so many times as long. Steps do not overlap
    unless asked to: what a limit does shows in the very next record.
    """
    generated = isinstance(source, WorkloadSpec)
    workload = source if isinstance(source, WorkloadSpec) else None
    engine = build_engine(EngineConfig(workload=workload, scheduler={"async_scheduling": False} | scheduler))
    if not generated:
        assert not isinstance(source, WorkloadSpec)
        engine.source = Listed(source)
    if slow is not None:
        engine.worker = SlowAtTimes(engine.worker, *slow)
    run = Run(engine.header, engine.snapshot())
    while engine.clock_s < until_s and not engine.exhausted:
        if each is not None:
            each(engine)
        record = engine.step()
        if record is not None:
            run.records.append(record)
    return run


def numbers(finding: Finding) -> dict[str, Any]:
    """The numbers of all links together."""
    found: dict[str, Any] = {}
    for link in finding.links:
        found |= link.numbers
    return found
