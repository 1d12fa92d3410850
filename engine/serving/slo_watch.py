"""Recent latencies against one bound, and whether a change broke it or made it worse.

An SLO that held when the change came breaks when the p95 of what is judged is past its bound, of at least
`MIN_SAMPLES`. What is open counts as soon as it is past the bound: a wait for a first token is a TTFT, a running or
preempted request without a token since is a gap. For ITL that alone would not do, because a request that is served
gives hundreds of short gaps while one that starves gives a single long one: it breaks, too, when more than
`MOST_STARVED` of the requests that have started to answer are past it, over all looks of those seconds.

One that was broken before the change is judged on worsening over whole `WATCH_S`: the share past the bound does not
fall, fewer outputs are served than before, and the backlog in work grows faster. More requests without a token than
before are worse, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.contract.telemetry import StepRecord

if TYPE_CHECKING:
    from schedtop.engine.scheduler.open_latencies import OpenLatencies, SecondsArray

WATCH_S = 5.0
"""An SLO is judged over the last seconds of the engine's clock."""
SETTLE_S = 1.0
"""Ignored right after a change: what was under way is not its doing."""
MIN_SAMPLES = 20
MOST_STARVED = 0.25
"""Above what a pool under pressure has preempted at any time (up to a seventh of its requests), which is not news."""
SERVED_LESS = 0.8
"""Below this share of the outputs served before, a change costs more than arrivals differ from second to second."""
WHOLE = 0.9
"""Of the seconds that are judged; steps do not end at their bounds."""
SAME_SHARE = 0.02
"""A share past the bound that fell by no more has not fallen."""

KINDS = ("ttft", "itl")


@dataclass(frozen=True, slots=True)
class _SeenRecord:
    """What one record says: tokens of work that arrived with it; work done and outputs since the session's start."""

    end_s: float
    ttft_s: tuple[tuple[int, float], ...]
    itl_s: bytes
    arrived: int
    done: int
    outputs: int


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Tokens per second over `span_s`: by how much the backlog in work grows, and outputs."""

    span_s: float
    growth: float
    outputs: float


class Recent:
    """The records of the last seconds, from `from_s` on."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._from_s = from_s
        self._seen: deque[_SeenRecord] = deque()

    def take(self, record: StepRecord) -> None:
        """Take in a record."""
        if record.start_s < self._from_s:
            return
        totals = record.totals
        done = totals.scheduled_tokens - totals.recomputed_tokens - totals.rejected_draft_tokens
        arrived = sum(arrival.prompt_tokens + arrival.max_tokens for arrival in record.arrivals)
        done += totals.cached_tokens
        self._seen.append(
            _SeenRecord(record.end_s, record.ttft_s, record.itl_s, arrived, done, totals.output_tokens)
        )
        self.forget(record.end_s)

    def forget(self, now_s: float) -> None:
        """Drop what is older than the seconds that are judged."""
        _forget(self._seen, now_s, lambda seen: seen.end_s)

    def known(self, kind: str) -> Any:
        """Latencies that ended, seconds."""
        if kind == "itl":
            return np.frombuffer(b"".join([seen.itl_s for seen in self._seen]), dtype=np.float32)
        return np.array([ttft_s for seen in self._seen for _, ttft_s in seen.ttft_s], dtype=np.float64)

    def work(self) -> WorkRates | None:
        """None for fewer than two records."""
        if len(self._seen) < 2 or (span_s := self._seen[-1].end_s - self._seen[0].end_s) <= 0:
            return None
        (first, *later), last = self._seen, self._seen[-1]
        growth = sum(seen.arrived for seen in later) - (last.done - first.done)
        return WorkRates(span_s, growth / span_s, (last.outputs - first.outputs) / span_s)


class Watched:
    """One bound over a change. `before` are the seconds before it, `after` those since it settled."""

    def __init__(self, kind: str, bound_s: float, before: Recent, unended: OpenLatencies, now_s: float) -> None:
        self._kind, self._bound_s = kind, bound_s
        before.forget(now_s)
        found = self._cohort(before, unended)
        self._was_past = self._share_past(found)
        self._was_broken = bool(self._late(found))
        self._work = before.work()
        self._was_starved = self._share_open_past(unended)
        self._looks: deque[tuple[float, int, int]] = deque()

    def breach(self, now_s: float, after: Recent, unended: OpenLatencies) -> str:
        """What broke or got worse; empty while nothing did."""
        after.forget(now_s)
        found = self._cohort(after, unended)
        if self._was_broken:
            return self._worse(found, after.work()) or self._starved(now_s, unended, self._was_starved)
        return self._late(found) or self._starved(now_s, unended, 0.0)

    def _open_s(self, unended: OpenLatencies) -> SecondsArray:
        return unended.itl if self._kind == "itl" else unended.ttft

    def _cohort(self, recent: Recent, unended: OpenLatencies) -> Cohort:
        """Of the requests that are judged: an open one within the bound is not."""
        open_s = self._open_s(unended)
        return cohort(recent.known(self._kind), open_s[open_s > self._bound_s])

    def _share_past(self, found: Cohort) -> float:
        share = found.share_within(self._bound_s)
        return 0.0 if share is None else 1.0 - share

    def _share_open_past(self, unended: OpenLatencies) -> float:
        open_s = self._open_s(unended)
        return float((open_s > self._bound_s).mean()) if len(open_s) else 0.0

    def _late(self, found: Cohort) -> str:
        num, p95 = found.n + found.num_open, found.quantile(0.95)
        if num < MIN_SAMPLES or p95 is None or p95.least <= self._bound_s:
            return ""
        words = f"{self._kind.upper()} p95 {_time(p95.least)} broke its SLO of {_time(self._bound_s)}"
        return words + (f", {found.num_open} of {num} still without a token" if found.num_open else "")

    def _worse(self, found: Cohort, work: WorkRates | None) -> str:
        before, share = self._work, self._share_past(found)
        if before is None or work is None or work.span_s < WHOLE * WATCH_S:
            return ""
        if share < self._was_past - SAME_SHARE or work.growth <= max(0.0, before.growth):
            return ""
        if work.outputs >= SERVED_LESS * before.outputs:
            return ""
        return (
            f"{self._kind.upper()} was past its SLO of {_time(self._bound_s)} and gets worse:"
            f" {100 * share:.0f} % past it ({100 * self._was_past:.0f} % before),"
            f" {work.outputs:,.0f} outputs/s served ({before.outputs:,.0f} before)"
        )

    def _starved(self, now_s: float, unended: OpenLatencies, usual: float) -> str:
        """Judge by requests over the looks of the last seconds: p95 over gaps hardly sees who gets none."""
        if self._kind != "itl":
            return ""
        open_s = unended.itl
        num, num_late = len(open_s), int((open_s > self._bound_s).sum())
        self._looks.append((now_s, num, num_late))
        _forget(self._looks, now_s, lambda look: look[0])
        looked, late = (sum(look[place] for look in self._looks) for place in (1, 2))
        if looked < MIN_SAMPLES or late <= (usual + MOST_STARVED) * looked or not num_late:
            return ""
        return f"ITL broke its SLO of {_time(self._bound_s)}: {num_late} of {num} requests got no token for longer"


def _forget(parts: deque[Any], now_s: float, time_of: Any) -> None:
    while parts and time_of(parts[0]) < now_s - WATCH_S:
        parts.popleft()


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"
