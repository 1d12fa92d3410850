"""The window a diagnosis looks at: its steps as columns, its latencies, its events, and how to point at steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from schedtop.console.drawing import text
from schedtop.console.explain import catalogue
from schedtop.console.explain.facts import (
    COLUMNS,
    MAX_STEPS,
    REASONS,
    Facts,
    FloatArray,
    Known,
    Marked,
    SecondTotals,
)
from schedtop.console.explain.finding import Advice, StepRange, percent, seconds
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.telemetry import Finish, KnobChange, Limiter, Preemption, Refusal

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Gaps = npt.NDArray[np.float32]
Item = TypeVar("Item")

_INDEX = {name: index for index, name in enumerate(COLUMNS)}
_MAX_SPANS = 5


class Table:
    """Rows of step numbers by column name; `where` keeps some of them."""

    def __init__(self, matrix: FloatArray) -> None:
        self.matrix = matrix

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, name: str) -> FloatArray:
        column: FloatArray = self.matrix[:, _INDEX[name]]
        return column

    def where(self, mask: Mask) -> Table:
        return Table(self.matrix[mask])

    def total(self, name: str) -> float:
        return float(self[name].sum())

    def mean(self, name: str) -> float:
        return float(self[name].mean()) if len(self) else 0.0

    def share(self, part: str, *whole: str) -> float:
        """One column's total in that of others together; 0 of nothing."""
        return self.total(part) / max(sum(map(self.total, whole)), 1.0)

    @property
    def pool_use(self) -> float:
        """Share of the pool's blocks that requests hold."""
        return self.share("used", "used", "free")

    def reason_mask(self, *reasons: str) -> Mask:
        """Rows whose limiter, or head's reason, is one of these."""
        return np.isin(self["limiter"], [REASONS.index(reason) for reason in reasons])

    def held_by(self, *reasons: str) -> Table:
        """Those rows."""
        return self.where(self.reason_mask(*reasons))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Service-level objectives in seconds; None is none."""

    ttft_s: float | None = None
    itl_s: float | None = None


class FactsWindow:
    """The last `window_s` seconds of some facts, from record `since_seq` on.

    `silent_s`: how long a live engine has sent nothing.
    """

    def __init__(
        self, facts: Facts, window_s: float, bounds: Bounds, silent_s: float | None = None, since_seq: int = 0
    ) -> None:
        matrix = facts.matrix()
        end_s = matrix[-1, _INDEX["end_s"]] if len(matrix) else 0.0
        first = int(np.searchsorted(matrix[:, _INDEX["end_s"]], end_s - window_s, side="right"))
        first = max(first, int(np.searchsorted(matrix[:, _INDEX["seq"]], since_seq)))
        self.facts, self.bounds, self.silent_s = facts, bounds, silent_s
        self.records = Table(matrix[first:])
        self._ran: Mask = self.records["executed"] > 0
        self.steps = self.records.where(self._ran)
        self._itl = facts.itl[-MAX_STEPS:][first:]
        self.end_s = float(end_s)
        self.from_s = float(self.records["start_s"][0]) if len(self.records) else 0.0
        self.first_seq = int(self.records["seq"][0]) if len(self.records) else 0
        self.full_s = window_s

    @property
    def window_s(self) -> float:
        """Seconds it really spans."""
        return self.end_s - self.from_s

    # Latency

    @cached_property
    def firsts(self) -> FloatArray:
        """First tokens with known queue time: (n, 4) of seq, time, TTFT and queue time in seconds."""
        found = [item for item in self._all_firsts if item[3] == item[3]]
        return np.array(found, dtype=np.float64).reshape(-1, 4)

    @cached_property
    def _all_firsts(self) -> list[tuple[int, float, float, float]]:
        return self._since(self.facts.firsts, itemgetter(0))

    @cached_property
    def ttft(self) -> Cohort:
        """TTFT of those who got their first token in the window, and of those who wait for it at its end."""
        known = [ttft_s for _, _, ttft_s, _ in self._all_firsts]
        waits = [self.end_s - item.arrival.arrival_s for item in self.facts.known.values() if not item.served]
        return cohort(known, waits)

    @cached_property
    def _all_gaps(self) -> Gaps:
        """ITL columns of all steps, one after another; NaN where a row delivered nothing."""
        parts = [part for part, ran in zip(self._itl, self._ran.tolist(), strict=True) if ran]
        return np.frombuffer(b"".join(parts), dtype=np.float32)

    @cached_property
    def itl_s(self) -> Gaps:
        """Every ITL of the window, in seconds."""
        known: Gaps = self._all_gaps[self._all_gaps == self._all_gaps]
        return known

    @cached_property
    def itl_step(self) -> npt.NDArray[np.int32]:
        """For each of `itl_s`, the row of `steps` that delivered it."""
        owner = np.repeat(np.arange(len(self.steps), dtype=np.int32), self.steps["gaps"].astype(np.int64))
        known: npt.NDArray[np.int32] = owner[self._all_gaps == self._all_gaps]
        return known

    @cached_property
    def stall_s(self) -> float:
        """Above this an ITL is a stall: its SLO, or `catalogue.STALL` times the median; infinite of too few."""
        if self.bounds.itl_s is not None:
            return self.bounds.itl_s
        return float("inf") if self.itl_p50_p95 is None else catalogue.STALL.value * self.itl_p50_p95[0]

    @cached_property
    def num_gaps(self) -> int:
        """How many `itl_s` there are: hundreds of thousands, which need not be copied for that."""
        return int(np.count_nonzero(self._all_gaps == self._all_gaps))

    def gaps_above(self, bound_s: float) -> int:
        """How many of `itl_s` are longer."""
        return int(np.count_nonzero(self._all_gaps > bound_s))

    @cached_property
    def stall_share(self) -> float:
        return self.gaps_above(self.stall_s) / self.num_gaps if self.num_gaps else 0.0

    @property
    def itl_smooth(self) -> bool:
        return self.stall_share < catalogue.STALL_SHARE.value

    @cached_property
    def itl_p50_p95(self) -> tuple[float, float] | None:
        """Seconds, interpolated linearly; None of too few."""
        if len(self.itl_s) < catalogue.MIN_GAPS.value:
            return None
        p50, p95 = np.quantile(self.itl_s, (0.5, 0.95))
        return float(p50), float(p95)

    def itl_words(self) -> str:
        """`ITL p50 8.3 ms, p95 12.6 ms: smooth (1 % stalls above 25.0 ms)`."""
        if self.itl_p50_p95 is None:
            return f"ITL: only {len(self.itl_s)} gaps"
        p50, p95 = self.itl_p50_p95
        word = "smooth" if self.itl_smooth else "not smooth"
        stalls = f"{percent(self.stall_share)} stalls above {seconds(self.stall_s)}"
        return f"ITL p50 {seconds(p50)}, p95 {seconds(p95)}: {word} ({stalls}, n={len(self.itl_s)})"

    @cached_property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.steps["end_s"] - self.steps["start_s"])) if len(self.steps) else 0.0

    # The queue

    @cached_property
    def queued(self) -> Mask:
        """Rows of `steps` after which requests waited."""
        return self.steps["waiting"] > 0

    @cached_property
    def queued_steps(self) -> Table:
        """Those rows themselves."""
        return self.steps.where(self.queued)

    @cached_property
    def queued_share(self) -> float:
        return float(self.queued.mean()) if len(self.steps) else 0.0

    @property
    def queue_lasts(self) -> bool:
        """Requests waited in enough of enough steps."""
        return len(self.steps) >= catalogue.MIN_STEPS.value and self.queued_share >= catalogue.QUEUED_SHARE.value

    def reason_share(self, *reasons: str) -> float:
        """Share of the steps with a queue whose head was held by one of these."""
        queued = self.queued_steps
        return float(queued.reason_mask(*reasons).mean()) if len(queued) else 0.0

    @cached_property
    def main_reason(self) -> Limiter:
        """What held the head in most of the steps with a queue; `none` without one."""
        return most_frequent_reason(self.queued_steps)

    def waiting(self) -> dict[int, Known]:
        """Requests in the queue now, by number."""
        return dict(self.facts.waiting())

    def name(self, number: float) -> str:
        """A request's id, cleaned; its number where the id is not known any more."""
        return self.facts.name(int(number))

    # Events

    def _since(self, items: deque[Item], seq: Callable[[Item], int]) -> list[Item]:
        """The items of the window: all that are kept, or from the newest back, as it is often the smaller part."""
        if items and seq(items[0]) >= self.first_seq:
            return list(items)
        return [*takewhile(lambda item: seq(item) >= self.first_seq, reversed(items))][::-1]

    @cached_property
    def preemptions(self) -> list[Marked[Preemption]]:
        return self._since(self.facts.preemptions, attrgetter("seq"))

    @cached_property
    def ends(self) -> list[Marked[Finish]]:
        return self._since(self.facts.ends, attrgetter("seq"))

    @cached_property
    def refusals(self) -> list[Marked[Refusal]]:
        return self._since(self.facts.refusals, attrgetter("seq"))

    def count(self, name: str) -> int:
        """By how much a running total grew over the window."""
        trend = self.trend
        before = next((second for second in reversed(trend) if second.end_s <= self.from_s), None)
        start = 0 if before is None else getattr(before.totals, name)
        return int(getattr(trend[-1].totals, name) - start)

    @property
    def pool_blocks(self) -> int:
        return int(self.steps["used"][-1] + self.steps["free"][-1]) if len(self.steps) else 0

    def knob_then(self, name: str, seq: int) -> Any:
        """A setting's value at a record: what changed after it is undone."""
        value = self.knob(name)
        for _, change in reversed(self.facts.coming):
            value = change.old if change.name == name else value
        for mark in reversed(self.facts.changes):
            if mark.seq <= seq:
                break
            value = mark.event.old if mark.event.name == name else value
        return value

    @cached_property
    def changes(self) -> list[Marked[KnobChange]]:
        return self._since(self.facts.changes, attrgetter("seq"))

    @property
    def trend(self) -> list[SecondTotals]:
        """Running totals second by second, and now."""
        return [*self.facts.seconds, self.facts.second(self.end_s)]

    # Pointing

    def spans(self, mask: Mask, words: Callable[[Table], str] | None = None) -> tuple[StepRange, ...]:
        """The longest runs of `steps` rows where `mask` holds, in order of time."""
        longest = sorted(sorted(runs(mask), key=len, reverse=True)[:_MAX_SPANS], key=lambda run: int(run[0]))
        return tuple(self.span(run, words) for run in longest)

    def span(self, rows: Rows, words: Callable[[Table], str] | None = None) -> StepRange:
        """Some rows of `steps` (ascending) as one range."""
        part = Table(self.steps.matrix[rows])
        seq, step = part["seq"], part["step"]
        label = words(part) if words is not None else ""
        return StepRange(int(seq[0]), int(seq[-1]), int(step[0]), int(step[-1]), label)

    def advise(self, *choices: tuple[str, str]) -> tuple[Advice, ...]:
        """Knobs and directions, with the value each knob has now."""
        return tuple(
            Advice(name, direction, self.knob_text(name), flag=self._flag(name, direction))
            for name, direction in choices
        )

    def _flag(self, name: str, direction: str) -> str:
        """The flag of a vLLM server that cannot turn this knob, or not beyond what it was started with."""
        header, knob, now = self.facts.header, BY_NAME[name], self.knob(name)
        if header is None or header.source != "vllm":
            return ""
        most = header.config.get(knob.ceiling) if knob.ceiling else None
        at_most = direction == "up" and most is not None and now is not None and now >= most
        return "" if name in self.facts.turnable and not at_most else knob.vllm_option

    def knob_text(self, name: str) -> str:
        value = self.knob(name)
        return "" if value is None and not BY_NAME[name].optional else text.value(value)

    def knob(self, name: str) -> Any:
        """A setting's value now: a live knob's, or what the engine started with."""
        if name in self.facts.knobs:
            return self.facts.knobs[name]
        return self.facts.header.config.get(name) if self.facts.header is not None else None


def most_frequent_reason(steps: Table) -> Limiter:
    """What held the head in most of them; `none` of none."""
    if not len(steps):
        return Limiter.NONE
    codes, counts = np.unique(steps["limiter"], return_counts=True)
    return Limiter(REASONS[int(codes[np.argmax(counts)])])


def runs(mask: Mask) -> list[Rows]:
    """The stretches of rows in which `mask` holds, each ascending."""
    rows = np.flatnonzero(mask)
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []


def last_run(mask: Mask) -> Rows:
    """The rows up to the newest in which `mask` holds without a break; empty if it does not hold there."""
    breaks = np.flatnonzero(~mask)
    return np.arange(int(breaks[-1]) + 1 if len(breaks) else 0, len(mask))


def marks(items: Iterable[Marked[Any]], words: Callable[[Any], str]) -> tuple[StepRange, ...]:
    """The first few events as single steps."""
    listed = list(items)[:_MAX_SPANS]
    return tuple(StepRange(item.seq, item.seq, item.step, item.step, words(item.event)) for item in listed)
