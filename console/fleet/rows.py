"""What a fleet shows of each engine, and of all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from schedtop.console.drawing import text
from schedtop.console.past import sample_sizes
from schedtop.console.past.history import History
from schedtop.console.past.open_latencies import cohorts
from schedtop.engine.contract.latencies.cohort import Cohort

FAR_MORE_WAITING = 4
FAR_MORE_USAGE = 0.25
"""How far above the median of the others marks an imbalance."""

NA = "n/a"


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One engine, or one of a page. `state` is empty while it answers, else why not; None is a figure it has not.

    `address` opens a console on it; empty where that needs steps. `brief` is its name where there is little room.
    `ttft` and `itl` are p50 and p95, worded.
    """

    name: str
    address: str = ""
    state: str = ""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    output_per_s: float | None = None
    prompt_per_s: float | None = None
    preemptions: float | None = None
    hit_rate: float | None = None
    ttft: tuple[str, str] = (NA, NA)
    itl: tuple[str, str] = (NA, NA)
    restarts: int = 0
    brief: str = ""


class Fleet(Protocol):
    """What the screen asks; called on its thread, so it must not wait."""

    def rows(self, window_s: float) -> Sequence[FleetRow]: ...

    def total(self, window_s: float) -> FleetRow | None:
        """All together: sums, and percentiles of what all of them delivered; None where nothing can be added up."""
        ...

    def notes(self) -> Sequence[str]:
        """What is not known here, and what would show it."""
        ...


def summed(
    rows: Sequence[FleetRow], ttft: tuple[str, str] = (NA, NA), itl: tuple[str, str] = (NA, NA)
) -> FleetRow | None:
    """Sums over those that answer; shares and percentiles have none. None of fewer than two."""
    alive = [row for row in rows if not row.state]
    if len(alive) < 2:
        return None

    def add(figure: Callable[[FleetRow], float | None]) -> float | None:
        values = [value for row in alive if (value := figure(row)) is not None]
        return sum(values) if len(values) == len(alive) else None

    return FleetRow(
        name=f"{len(alive)} engines",
        running=add(lambda row: row.running),
        waiting=add(lambda row: row.waiting),
        output_per_s=add(lambda row: row.output_per_s),
        prompt_per_s=add(lambda row: row.prompt_per_s),
        preemptions=add(lambda row: row.preemptions),
        ttft=ttft,
        itl=itl,
    )


def imbalances(rows: Sequence[FleetRow]) -> dict[int, str]:
    """Rows that differ from the others, by index, and in which figures."""
    found = {}
    for place, row in enumerate(rows):
        others = [other for other in rows if other is not row and not other.state]
        if row.state or not others:
            continue
        waits = [other.waiting for other in others if other.waiting is not None]
        usages = [other.kv_usage for other in others if other.kv_usage is not None]
        if row.waiting is not None and waits and row.waiting > 2 * median(waits) + FAR_MORE_WAITING:
            found[place] = "waiting"
        elif row.kv_usage is not None and usages and row.kv_usage > median(usages) + FAR_MORE_USAGE:
            found[place] = "KV"
    return found


def row_of(
    name: str, address: str, state: str, history: History, window_s: float, silent_s: float = 0.0
) -> FleetRow:
    """An engine whose steps are known, and that has said nothing for `silent_s`. Call it with the history locked."""
    moment = history.now()
    totals, blocks = moment.state.totals, moment.record.blocks if moment.record is not None else None
    pool = None if history.header is None else history.header.num_blocks
    reported_s = max(window_s - silent_s, 0.0)  # an idle engine tells nothing: the rest of the window has no tokens
    rates, share = history.rates(moment, reported_s), reported_s / window_s
    latency = cohorts(history, moment, window_s)
    return FleetRow(
        name=name,
        address=address,
        state=state,
        running=moment.state.num_running,
        waiting=moment.state.num_waiting,
        kv_usage=None if blocks is None or not pool else (blocks.held + blocks.shared) / pool,
        output_per_s=_of(None if rates is None else rates.output_tokens, share),
        prompt_per_s=_of(None if rates is None else rates.prompt_tokens, share),
        preemptions=totals.preemptions,
        hit_rate=totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else None,
        ttft=worded(latency["ttft"]),
        itl=worded(latency["itl"]),
    )


def _of(rate: float | None, share: float) -> float | None:
    """A rate over a part of the window, over all of it."""
    return 0.0 if not share else rate if rate is None or share == 1.0 else rate * share


def worded(members: Cohort) -> tuple[str, str]:
    """p50 and p95, `>` before a lower bound; a mark where the members are too few."""
    words = []
    for share in (0.5, 0.95):
        found = sample_sizes.bounded(members, share)
        lack = sample_sizes.LACK if members.n + members.num_open else NA
        words.append(lack if found is None else (">" if found.is_bound else "") + text.ms(found.least))
    return words[0], words[1]
