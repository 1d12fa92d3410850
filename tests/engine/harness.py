"""A small engine under test: a device that takes half a second per step, and requests written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.telemetry import PROTOCOL, Header, StepRecord
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.clock import SimulatedClock
from schedtop.engine.step.engine import Engine

STEP_S = 0.5
VOCAB = 1000


class EvenCost:
    """Every step takes `STEP_S`."""

    def step_s(self, features: StepFeatures) -> float:
        return STEP_S


@dataclass
class Script:
    """A source with requests at given times. `rates` collects what it was told."""

    requests: list[Request]
    description: dict[str, Any] = field(default_factory=dict)
    rates: list[tuple[float | None, float]] = field(default_factory=list)

    def take(self, clock_s: float, step: int) -> list[Request]:
        taken = [request for request in self.requests if request.arrival_s <= clock_s]
        self.requests = self.requests[len(taken) :]
        return taken

    def next_arrival_s(self) -> float | None:
        return self.requests[0].arrival_s if self.requests else None

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        self.rates.append((rate, clock_s))


def ask(id: str, prompt: int | list[int], outputs: int = 4, **fields: Any) -> Request:
    """A request; a prompt given as a length consists of tokens no other id has."""
    tokens = [own_token(id) + place for place in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(id, np.array(tokens, dtype=np.int32), outputs, **fields)


def own_token(id: str) -> int:
    """Where the tokens of an id begin, far from those of any other with its first two letters."""
    return 10_000 + int.from_bytes(id[:2].encode(), "big") * 1_000


def engine_of(*requests: Request, source: Script | None = None, acceptance: float = 0.7, **config: Any) -> Engine:
    """An engine with `requests` submitted. Blocks of 4 tokens, 16 of them, and no prefix cache, unless given."""
    settings = {"num_blocks": 16, "block_size": 4, "max_model_len": 200, "enable_prefix_caching": False, **config}
    scheduler = SchedulerConfig(**settings)
    worker = SimWorker(
        EvenCost(), VOCAB, acceptance=acceptance, num_speculative_tokens=scheduler.num_speculative_tokens
    )
    engine = Engine(Scheduler(scheduler), worker, source, SimulatedClock(), header_of(scheduler))
    for request in requests:
        engine.submit(request)
    return engine


def header_of(config: SchedulerConfig) -> Header:
    return Header(
        protocol=PROTOCOL,
        engine="schedtop",
        engine_version="test",
        model="model",
        device="device",
        policy=config.policy,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_model_len=config.max_model_len,
        config={},
        workload={},
        started_at=0.0,
        simulated_clock=True,
    )


def step(engine: Engine, count: int = 1) -> StepRecord:
    """The record of the last of `count` steps."""
    for _ in range(count):
        record = engine.step()
    assert record is not None, "nothing to do and nothing to tell"
    return record


def run_out(engine: Engine, most: int = 5000) -> list[StepRecord]:
    """Every record until there is nothing to do."""
    records: list[StepRecord] = []
    for _ in range(most):
        record = engine.step()
        if record is None:
            return records
        records.append(record)
    raise AssertionError(f"{engine.num_unfinished} requests still unfinished after {most} steps")
