"""Before and after a change: the same figures over two windows, or that there are too few samples. No drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from schedtop.console.drawing import text
from schedtop.console.past import sample_sizes
from schedtop.console.past.events import Event
from schedtop.console.past.latency import BUCKET_S, LatencyBuckets
from schedtop.console.past.open_latencies import Floats, cohort_of, unended
from schedtop.console.past.past import Past
from schedtop.engine.contract.latencies.samples import Samples, merge
from schedtop.engine.contract.telemetry import KnobChange, Totals

SPAN_S = 60.0
"""The longest window on either side of a change."""

SHARES = (0.5, 0.95)
"""The quantiles that are compared."""

SAME = 0.02
"""Differences below this share are called none."""
STARVING = 0.01
"""Of running requests without a token in a step: where they are served there are none at all."""
LONG_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """Knobs that changed in one step, and who changed them."""

    seq: int
    step: int
    clock_s: float
    by: str
    knobs: tuple[KnobChange, ...]

    @property
    def before(self) -> dict[str, object]:
        return {knob.name: knob.old for knob in self.knobs}


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure on both sides, in the unit of its name; None where `n` is too few. `lower_is_better`.

    `share` is that of a quantile; None for a rate, whose `n` counts steps. `bounds` says which side is a lower bound,
    `before_most` and `after_most` what they can become at most. `unseen` says for whom the figure after the
    change does not speak: only what ended has a latency.
    """

    name: str
    before: float | None
    after: float | None
    before_n: int
    after_n: int
    lower_is_better: bool
    share: float | None = None
    unseen: str = ""
    before_most: float | None = None
    after_most: float | None = None
    bounds: tuple[bool, bool] = (False, False)

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no change`; `unseen` in place of praise; `cannot tell` where what is still open on
        either side could turn it round; empty where it cannot be said."""
        if self.before is None or self.after is None:
            return self.unseen
        if any(self.bounds):
            return self._of_bounds(self.before, self.after)
        changed = self.after - self.before
        if changed and (changed > 0) == self.lower_is_better and abs(changed) >= SAME * self.before:
            return "worse"
        return self.unseen or ("no change" if abs(changed) < SAME * self.before or not changed else "better")

    def _of_bounds(self, before: float, after: float) -> str:
        """Of a latency: what is shown is the least it can be."""
        before_most = before if self.before_most is None else self.before_most
        after_most = after if self.after_most is None else self.after_most
        if after > before_most * (1 + SAME):
            return "worse"
        return self.unseen or ("better" if after_most < before * (1 - SAME) else "cannot tell")

    @property
    def ratio(self) -> float | None:
        """After over before, less one; None where one is not known or zero."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before - 1


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Figures of the seconds before and after a change, each at most `SPAN_S` and free of other changes."""

    before_s: float
    after_s: float
    figures: tuple[FigurePair, ...]


def changes(history: Past) -> list[Change]:
    """Knob changes that are still known, newest first."""
    found: dict[int, list[Event]] = {}
    for event in history.of_kind("K"):
        found.setdefault(event.seq, []).insert(0, event)
    return [
        Change(seq, events[0].step, events[0].clock_s, events[0].detail.by, tuple(event.detail for event in events))
        for seq, events in sorted(found.items(), reverse=True)
    ]


def compare(history: Past, change: Change, all_changes: list[Change]) -> BeforeAfter:
    """Both windows around `change`, cut at its neighbours."""
    earlier = max((other.clock_s for other in all_changes if other.clock_s < change.clock_s), default=0.0)
    later = min(
        (other.clock_s for other in all_changes if other.clock_s > change.clock_s), default=history.live.clock_s
    )
    bucket = int(change.clock_s // BUCKET_S)
    first = max(int(earlier // BUCKET_S) + 1, bucket - int(SPAN_S / BUCKET_S))
    last = min(int(later // BUCKET_S) - 1, bucket + int(SPAN_S / BUCKET_S))
    # The second in which the change fell belongs to neither side.
    sides = ((first, bucket - 1), (bucket + 1, last))
    opens = (_open(history, sides[0]), _open(history, sides[1]))
    unseen = {"ttft": _waiting(history, sides[1]), "itl": _starving(history, sides[1])}
    figures = [
        _quantile_figure(history, kind, share, sides, opens, words)
        for kind, words in unseen.items()
        for share in SHARES
    ]
    rates: tuple[tuple[str, Callable[[Totals], float], bool], ...] = (
        ("out tok/s", lambda totals: totals.output_tokens, False),
        ("preempt/min", lambda totals: 60 * totals.preemptions, True),
    )
    figures += [_rate_figure(history, name, count, lower, sides) for name, count, lower in rates]
    spans = [max(0, stop - start + 1) * BUCKET_S for start, stop in sides]
    return BeforeAfter(spans[0], spans[1], tuple(figures))


NOBODY: Floats = np.zeros(0)

Sides = tuple[tuple[int, int], tuple[int, int]]


def _samples(history: Past, kind: str, side: tuple[int, int]) -> Samples:
    parts = [history.latency.bucket(index) for index in range(side[0], side[1] + 1)]
    return merge([part[kind] for part in parts if part is not None])


def _waiting(history: Past, side: tuple[int, int]) -> str:
    """That somebody waits at the end of these seconds for longer than nearly all first tokens took in them."""
    readings = history.latency.readings(*side)
    oldest_s = readings[-1].oldest_wait_s if readings else None
    usual_s = _samples(history, "ttft", side).quantile(0.95) or 0.0
    if oldest_s is None or oldest_s <= max(usual_s, LONG_WAIT_S):
        return ""
    return f"{text.duration(oldest_s)} waiting"


def _starving(history: Past, side: tuple[int, int]) -> str:
    starved, running = history.latency.unserved(*side)
    return f"{text.share(starved, running)} starve" if starved > STARVING * running else ""


_MOST_OPEN = 256
_known_open: WeakKeyDictionary[LatencyBuckets, dict[int, Mapping[str, Floats]]] = WeakKeyDictionary()
"""What was open at the end of a second of a run: to go back to it costs more than to draw."""


def _open(history: Past, side: tuple[int, int]) -> Mapping[str, Floats]:
    """What was open at the end of these seconds; nothing where that is forgotten."""
    first, last = side
    known = _known_open.setdefault(history.latency, {})
    if last < first:
        return {}
    if last not in known:
        seq = history.seq_before((last + 1) * BUCKET_S)
        moment = None if seq is None else history.at(seq)
        known[last] = {} if moment is None else unended(moment.state)
        while len(known) > _MOST_OPEN:
            del known[next(iter(known))]
    return known[last]


def _quantile_figure(
    history: Past,
    kind: str,
    share: float,
    sides: Sides,
    opens: tuple[Mapping[str, Floats], Mapping[str, Floats]],
    unseen: str,
) -> FigurePair:
    members = [
        cohort_of(_samples(history, kind, side), open_s.get(kind, NOBODY))
        for side, open_s in zip(sides, opens, strict=True)
    ]
    before, after = (sample_sizes.bounded(found, share) for found in members)
    return FigurePair(
        f"{kind.upper()} p{share * 100:.0f} ms",
        None if before is None else before.least * 1000,
        None if after is None else after.least * 1000,
        members[0].n + members[0].num_open,
        members[1].n + members[1].num_open,
        lower_is_better=True,
        share=share,
        unseen=unseen,
        before_most=None if before is None else before.most * 1000,
        after_most=None if after is None else after.most * 1000,
        bounds=(before is not None and before.is_bound, after is not None and after.is_bound),
    )


def _rate_figure(
    history: Past, name: str, count: Callable[[Totals], float], lower: bool, sides: Sides
) -> FigurePair:
    """A rate from running totals, where those of both ends are known; `n` counts steps."""
    values: list[float | None] = []
    steps: list[int] = []
    for start, stop in sides:
        readings = history.latency.readings(start, stop + 1)
        steps.append(readings[-1].step - readings[0].step if readings else 0)
        known = len(readings) >= 2 and readings[0].end_s < (start + 1) * BUCKET_S
        span_s = readings[-1].end_s - readings[0].end_s if known else 0.0
        long = stop - start + 1 >= sample_sizes.LEAST_S / BUCKET_S and span_s > 0
        values.append((count(readings[-1].totals) - count(readings[0].totals)) / span_s if long else None)
    return FigurePair(name, values[0], values[1], steps[0], steps[1], lower)
