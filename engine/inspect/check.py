"""Conditions on a recording, each with the step that broke it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.latencies.slo import Slo, served
from schedtop.engine.contract.reading import itl_column, row_columns
from schedtop.engine.contract.telemetry import FinishReason, Snapshot, StepRecord
from schedtop.engine.inspect.conditions import COUNTS, LATENCIES, RATES, SHARES, Condition
from schedtop.engine.offline.report import Report, duration_text, percent_text
from schedtop.engine.recording.reader import Recording


class Checked(msgspec.Struct, frozen=True):
    """One condition's answer. `value` None: the run has no such figure, which keeps no condition. `step` is where
    a breach began, or where what weighs most in it happened; `request` is whose it was."""

    condition: str
    ok: bool
    value: float | None
    shown: str
    step: int | None = None
    request: str | None = None
    detail: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"ok      {self.condition}: {self.shown}"
        where = "" if self.step is None else f"; {self.detail} at step {self.step}"
        return f"BREACH  {self.condition}: {self.shown}{where}" + (f" ({self.request})" if self.request else "")


class Extreme:
    """All values of one latency, and where the largest one was."""

    def __init__(self) -> None:
        self.values = Percentiles()
        self.total_s = 0.0
        self.max_s = float("-inf")
        self.step: int | None = None
        self.request: str | None = None

    def add(self, value_s: float | None, step: int, request: str) -> None:
        if value_s is None:
            return
        self.values.add(value_s)
        self.total_s += value_s
        if value_s > self.max_s:
            self.max_s, self.step, self.request = value_s, step, request

    def statistic(self, name: str) -> float | None:
        count = self.values.count
        match name:
            case "n":
                return float(count)
            case "max":
                return self.max_s if count else None
            case "mean":
                return self.total_s / count if count else None
        return self.values.percentile(int(name[1:]) / 100)


class Checker:
    """Takes in a recording's records and answers conditions about them. Counts begin after `start`."""

    def __init__(self, conditions: Sequence[Condition], slo: Slo | None, start: Snapshot) -> None:
        self.conditions = conditions
        self.latencies = {name: Extreme() for name in LATENCIES}
        self.counts = dict.fromkeys(COUNTS, 0)
        self.broken: dict[int, tuple[int, str | None]] = {}
        self.report = Report(slo)
        self.report.begin(start)
        self._start = start
        self._ids = {item.arrival.number: item.arrival.id for item in start.requests}
        self._last_step = start.step

    def add(self, record: StepRecord) -> None:
        """Take in the next record."""
        self._ids.update((arrival.number, arrival.id) for arrival in record.arrivals)
        self._last_step = record.step
        self.report.add(record)
        self._add_latencies(record)
        for name, number, request in _happened(record):
            self.counts[name] += number
            self._judge(name, record.step, request)
        for finish in record.finishes:
            self._ids.pop(finish.number, None)

    def _add_latencies(self, record: StepRecord) -> None:
        for number, wait_s in record.ttft_s:
            self.latencies["ttft"].add(wait_s, record.step, self._name(number))
        for finish in filter(served, record.finishes):
            for name, value_s in (("tpot", finish.tpot_s), ("e2e", finish.e2e_s), ("queue", finish.queue_s)):
                self.latencies[name].add(value_s, record.step, self._name(finish.number))
        if record.itl_s:
            self._add_gaps(record)

    def _add_gaps(self, record: StepRecord) -> None:
        itl, gaps_s = self.latencies["itl"], itl_column(record)
        known = gaps_s[~np.isnan(gaps_s)].astype(np.float64)
        if not len(known):
            return
        itl.values.add_bytes(known.tobytes())
        itl.total_s += float(known.sum())
        largest = float(known.max())
        if largest > itl.max_s:
            number = int(row_columns(record)["request"][int(np.nanargmax(gaps_s))])
            itl.max_s, itl.step, itl.request = largest, record.step, self._name(number)

    def _judge(self, name: str, step: int, request: int | None) -> None:
        """Counts only grow: an upper bound breaks here, a lower bound is judged at the end."""
        for index, condition in enumerate(self.conditions):
            if condition.figure == name and condition.bounds_above and index not in self.broken:
                count = self.counts[name]
                if count >= condition.limit and not condition.holds(count):
                    self.broken[index] = step, None if request is None else self._name(request)

    def _name(self, number: int) -> str:
        return self._ids.get(number, f"request {number}")

    def outcomes(self) -> Iterator[Checked]:
        """The answers, in the order of the conditions."""
        figures = self._figures()
        for index, condition in enumerate(self.conditions):
            name = condition.figure
            value = self.latencies[name].statistic(condition.statistic) if name in LATENCIES else figures[name]
            shown = _shown(condition, value)
            if value is None:
                yield Checked(condition.text, False, None, shown)
            elif condition.holds(value):
                yield Checked(condition.text, True, value, shown)
            else:
                yield self._breach(index, condition, value, shown)

    def _breach(self, index: int, condition: Condition, value: float, shown: str) -> Checked:
        if condition.figure in LATENCIES and condition.statistic != "n" and condition.bounds_above:
            worst = self.latencies[condition.figure]
            detail = f"worst {duration_text(worst.max_s)}"
            return Checked(condition.text, False, value, shown, worst.step, worst.request, detail)
        if index in self.broken:
            return Checked(condition.text, False, value, shown, *self.broken[index], "broken")
        return Checked(condition.text, False, value, shown, self._last_step, None, "judged")

    def _figures(self) -> dict[str, float | None]:
        """Every figure that is one number."""
        document = self.report.as_dict(self._start.totals, self._start.clock_s)
        span_s = document["clock_s"]
        rates = {"output_tokens_per_s": "output_tokens", "requests_per_s": "finished"}
        return {
            **self.counts,
            "hit_rate": document["hit_rate"],
            "peak_kv_usage": document["peak_kv_usage"],
            "budget_use": document["budget_use"]["tokens"],
            "goodput": document["goodput"]["share"] if "goodput" in document else None,
            **{rate: self.counts[name] / span_s if span_s > 0 else None for rate, name in rates.items()},
        }


def _shown(condition: Condition, value: float | None) -> str:
    if value is None:
        return "n/a: the recording has none"
    if condition.figure in LATENCIES and condition.statistic != "n":
        return duration_text(value)
    if condition.figure in SHARES:
        return percent_text(value)
    return f"{value:,.1f}/s" if condition.figure in RATES else f"{value:,.0f}"


def _happened(record: StepRecord) -> Iterator[tuple[str, int, int | None]]:
    """What a record adds to each count, and for which request."""
    for preemption in record.preemptions:
        yield "preemptions", 1, preemption.number
        if preemption.loop:
            yield "loops", 1, preemption.number
    for refusal in record.refusals:
        yield "refusals", 1, refusal.number
    for finish in record.finishes:
        yield _ENDS.get(finish.reason, "finished"), 1, finish.number
    yield from (("submitted", 1, arrival.number) for arrival in record.arrivals)
    if record.knobs:
        yield "knob_changes", len(record.knobs), None
    if record.executed:
        yield "steps", 1, None
        rows = row_columns(record)
        yield "output_tokens", int(rows["emitted"].sum()), None
        yield "recomputed_tokens", record.recomputed_tokens, None
        if record.draft_tokens:
            became_outputs = np.minimum(rows["accepted"], np.maximum(rows["emitted"] - 1, 0)).sum()
            yield "rejected_draft_tokens", record.draft_tokens - int(became_outputs), None


_ENDS = {
    FinishReason.ABORT.value: "aborts",
    FinishReason.REFUSED.value: "refusals",
    FinishReason.KV_CAPACITY.value: "kv_capacity",
}


def check(
    recording: Recording,
    conditions: Sequence[Condition],
    slo: Slo | None = None,
    on_progress: Callable[[int], None] = lambda index: None,
) -> list[Checked]:
    """Every condition's answer. Raises `ConfigError` for goodput without an SLO, `RecordingError` for the file."""
    if slo is None and any(condition.figure == "goodput" for condition in conditions):
        raise ConfigError("goodput needs bounds: give --slo ttft=1s,itl=50ms")
    checker = Checker(conditions, slo, recording.keyframe_before(0)[0])
    for index, record in enumerate(recording.records()):
        if index % 256 == 0:
            on_progress(index)
        checker.add(record)
    return list(checker.outcomes())
