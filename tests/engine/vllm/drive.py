"""Runs a hooked stub scheduler and turns its notes into records, without a thread or a socket."""

from __future__ import annotations

from typing import Any

import pytest
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.vllm.engine import fixed_of
from schedtop.engine.vllm.hook import Hook
from schedtop.engine.vllm.plugin import hooked
from schedtop.engine.vllm.records.records import Records

from tests.engine.vllm.stub import Request, scheduler_of


class Run:
    """One hooked scheduler. `records` are all so far."""

    def __init__(self, version: str, **settings: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:  # no thread: what the hook notes is taken here
            patch.setattr("schedtop.engine.vllm.plugin._begin", Hook)
            self.scheduler: Any = hooked(scheduler_of(version, **settings))()
        self.hook: Hook = self.scheduler.schedtop_hook
        facts = self.hook.facts
        self.maker = Records(facts.header, facts.knobs, fixed_of(facts.header))
        self.records: list[StepRecord] = []
        self.last_outputs: Any = None

    def add(self, name: str, prompt: int, outputs: int, **more: Any) -> None:
        self.scheduler.add_request(Request(name, prompt, outputs, **more))

    def step(self) -> None:
        """One synchronous step of the engine."""
        output = self.scheduler.schedule()
        self.last_outputs = self.scheduler.update_from_output(output)
        self.take()

    def take(self) -> None:
        """Make what records there are."""
        while self.hook.log:
            record = self.maker.take(self.hook.log.popleft())
            if record is not None:
                self.records.append(record)

    def tell(self) -> StepRecord | None:
        """What happened beside the steps."""
        self.take()
        record = self.maker.idle(self.hook.now_s())
        if record is not None:
            self.records.append(record)
        return record

    def run_out(self, most: int = 2000) -> None:
        while self.scheduler.requests and most:
            self.step()
            most -= 1
        assert not self.scheduler.requests
