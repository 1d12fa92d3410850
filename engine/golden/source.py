"""A golden case as a workload: its requests, knob changes and aborts happen at their steps of an engine."""

from __future__ import annotations

from typing import Any

from schedtop.engine.golden.case import Case, make_request
from schedtop.engine.golden.replay import case_model
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine

STEP_S = 1.0
"""Case steps are a second apart on the engine's clock: arrivals of step s come at s seconds."""


class CaseWorker:
    """The model of the cases, one second a step."""

    simulated = True

    def __init__(self, case: Case) -> None:
        self.model = case_model(case)

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.model.execute(plan)
        result.elapsed_s = STEP_S
        return result


class CaseSource:
    """Drives the engine it is bound to: knobs, arrivals and aborts of each step, in this order.

    A step of the case is a turn of the engine; the clock says less, because it stops while steps are only planned.
    """

    def __init__(self, case: Case, worker: CaseWorker) -> None:
        self.case = case
        self.description: dict[str, Any] = {"source": case.name or "case", "requests": len(case.requests)}
        self._worker = worker
        self._engine: Engine | None = None
        self._numbers: dict[str, int] = {}
        self._num_skipped = 0
        steps = {request.arrival_step for request in case.requests}
        steps |= {request.ready_step for request in case.requests if request.ready_step > request.arrival_step}
        steps |= {knob.step for knob in case.knobs} | {abort.step for abort in case.aborts}
        self._event_steps = sorted(steps)

    def bind(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, clock_s: float, step: int) -> list[Request]:
        """Apply everything up to the present step; requests are submitted here, before their step's aborts."""
        engine = self._engine
        assert engine is not None, "a case source is bound before its engine steps"
        now = engine.num_turns + self._num_skipped
        if self._event_steps and not (engine.has_work or engine.paused):
            self._num_skipped += max(self._event_steps[0] - now, 0)
            now = engine.num_turns + self._num_skipped
        while self._event_steps and self._event_steps[0] <= now:
            engine.set_apart()
            self._apply(self._event_steps.pop(0))
        return []

    def next_arrival_s(self) -> float | None:
        return self._event_steps[0] * STEP_S if self._event_steps else None

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        """A case's arrivals are fixed."""

    def _apply(self, step: int) -> None:
        engine = self._engine
        assert engine is not None, "a case source is bound before its engine steps"
        for knob in self.case.knobs:
            if knob.step == step:
                engine.set_knobs(knob.set, by="case")
        for ordinal, asked in enumerate(self.case.requests):
            if asked.arrival_step == step:
                request = make_request(asked, engine.clock_s)
                engine.submit(request)
                self._numbers[asked.id] = request.number
                self._worker.model.add(request.number, ordinal, asked.stop_after)
        for abort in self.case.aborts:
            if abort.step == step and abort.id in self._numbers:
                engine.abort(self._numbers[abort.id])
        for asked in self.case.requests:
            if asked.ready_step == step and asked.id in self._numbers:
                engine.scheduler.make_ready(self._numbers[asked.id])
