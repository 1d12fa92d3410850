"""Compares two runs of the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.contract.sanitize import page
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.decide_again.divergence import Divergence, first_difference
from schedtop.engine.decide_again.scenario import Scenario, check_changes
from schedtop.engine.offline.refused_or_cut import held_back_lines
from schedtop.engine.offline.report import Report
from schedtop.engine.offline.report_text import note_lines
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.stretch.stretch import Stretch, records_of
from schedtop.engine.whatif.compared_figures import change_text, setting_text, shown_in

OnProgress = Callable[[float], None]


class FigureDifference(msgspec.Struct, frozen=True):
    """One figure in both runs; None is unknown. `relative` is to the base."""

    figure: str
    base: float | None
    variant: float | None
    difference: float | None
    relative: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change. `base` and `variant` are reports' documents.

    `changes` maps each knob to its value in the base (a list of them where it was turned on the way) and in the
    variant. `divergence` None: every step is the same
    in both runs, and `changed` is false.
    """

    source: str
    device: str
    changes: dict[str, tuple[Any, Any]]
    from_step: int
    base: dict[str, Any]
    variant: dict[str, Any]
    differences: list[FigureDifference]
    divergence: Divergence | None
    changed: bool
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["changes"] = {name: {"base": old, "variant": new} for name, (old, new) in self.changes.items()}
        return plain

    def as_text(self) -> str:
        """A side-by-side table, and below it where the runs diverge."""
        head = ("", "base", "variant", "difference")
        rows = [head]
        for figure in shown_in(self.base, self.variant):
            base, variant = figure.of(self.base), figure.of(self.variant)
            texts = (figure.text(self.base), figure.text(self.variant), change_text(figure, base, variant))
            rows.append((figure.label, *texts))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{self.source} on {self.device}", self._changes_text(), *self.notes, ""]
        lines += [
            f"{name:<{widths[0]}}  {base:>{widths[1]}}  {variant:>{widths[2]}}  {step}".rstrip()
            for name, base, variant, step in rows
        ]
        return page([*lines, "", *self.verdict().split("\n"), *self._reported()])

    def _reported(self) -> list[str]:
        """Notes on the base, and on the variant where they differ."""
        base = held_back_lines(self.base)
        variant = [line for line in held_back_lines(self.variant) if line not in base]
        return [*note_lines(self.base), *(f"variant: {line}" for line in variant)]

    def verdict(self) -> str:
        """Either no change, or where the runs diverge and in what."""
        if self.divergence is None:
            return f"no change: all {self.base['steps']:,} steps are the same"
        return f"first difference at {self.divergence}"

    def _changes_text(self) -> str:
        when = f" from step {self.from_step} on" if self.from_step else ""
        texts = (f"{name} {setting_text(old)} → {setting_text(new)}" for name, (old, new) in self.changes.items())
        return ", ".join(texts) + when


def compare(
    scenario: Scenario | EngineConfig,
    changes: Mapping[str, Any],
    slo: Slo | None = None,
    *,
    from_step: int = 0,
    on_progress: OnProgress = lambda clock_s: None,
) -> Comparison:
    """Run a scenario as it is and with `changes` (knob names to values), on the same simulated device and pool.

    The changes hold from the start, or after `from_step` steps (then only live knobs). `on_progress` gets the
    base's clock. Raises `ConfigError` for a setting that cannot be used.
    """
    if isinstance(scenario, EngineConfig):
        scenario = Scenario(scenario)
    typed = check_changes(changes, live=from_step > 0)
    base_run = scenario.pinned()
    variant_run = base_run.changed(typed, from_step)
    base, variant = base_run.build(), variant_run.build()
    old, since_s = {name: setting(base, name) for name in typed}, 0.0

    def on_step(record: StepRecord) -> None:
        nonlocal since_s
        if record.step == from_step:  # what changed on the way has changed in both
            since_s = record.end_s
            old.update((name, setting(base, name)) for name in typed)

    sides = (
        _Side(base_run.run(base), _report(base, slo), on_progress),
        _Side(variant_run.run(variant), _report(variant, slo), lambda clock_s: None),
    )
    divergence = _run_both(sides, on_step)
    steps = base.observer.step
    if from_step and from_step >= steps:
        raise ConfigError(f"--at {from_step}: there are {steps} steps, so at most {max(steps - 1, 0)}")
    for side, engine in zip(sides, (base, variant), strict=True):
        side.report.close(base_run.config.duration_s or engine.clock_s)
    documents = [side.report.as_dict() for side in sides]
    return Comparison(
        source=scenario.source,
        device=base.header.device,
        changes={name: (base_run.turned(name, old[name], since_s), value) for name, value in typed.items()},
        from_step=from_step,
        base=documents[0],
        variant=documents[1],
        differences=_differences(*documents),
        divergence=divergence,
        changed=divergence is not None,
        notes=list(scenario.notes),
    )


def run(scenario: Scenario, slo: Slo | None = None) -> dict[str, Any]:
    """The report's document of one run, without wall time: the same for the same scenario."""
    engine = scenario.build()
    report = _report(engine, slo)
    for done in scenario.run(engine):
        report.add(done)
    report.close(scenario.config.duration_s or engine.clock_s)
    return report.as_dict()


def _report(engine: Engine, slo: Slo | None) -> Report:
    report = Report.of(engine.header, slo)
    report.drafter = None
    return report


@dataclass(slots=True)
class _Side:
    """One of the two runs. `report` has all that `done` gave so far."""

    done: Iterator[StepRecord | Stretch]
    report: Report
    on_progress: OnProgress

    def records(self) -> Iterator[StepRecord]:
        for done in self.done:
            yield from records_of(self._reported(done))

    def finish(self) -> None:
        for done in self.done:
            self._reported(done)

    def _reported(self, done: StepRecord | Stretch) -> StepRecord | Stretch:
        self.report.add(done)
        self.on_progress(done.end_s)
        return done


def _run_both(sides: tuple[_Side, _Side], on_step: Callable[[StepRecord], None]) -> Divergence | None:
    """Run both to completion; step by step only until they diverge. `on_step` gets the base's records up to there."""
    divergence: Divergence | None = None
    ids: dict[int, str] = {}
    pairs: Any = zip_longest(*(side.records() for side in sides))
    for one, other in pairs:
        ids.update((arrival.number, arrival.id) for arrival in (one or other).arrivals)
        if one is not None:
            on_step(one)
        divergence = first_difference(one, other, ids)
        if divergence is not None:
            break
    for side in sides:
        side.finish()
    return divergence


def setting(engine: Engine, name: str) -> Any:
    """A knob's current value: the live one, or the start-up value."""
    return engine.knobs[name] if name in engine.knobs else getattr(engine.scheduler.config, name)


def _differences(base: dict[str, Any], variant: dict[str, Any]) -> list[FigureDifference]:
    rows = []
    for figure in shown_in(base, variant):
        old, new = figure.of(base), figure.of(variant)
        step = None if old is None or new is None else new - old
        relative = step / old if step is not None and old else None
        rows.append(FigureDifference(figure.name, old, new, step, relative))
    return rows
