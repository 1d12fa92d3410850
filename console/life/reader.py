"""Reads a request's life from the kept records. No drawing here."""

from __future__ import annotations

import math
import time
from itertools import islice

import numpy as np
from schedtop.console.life.path import Walk
from schedtop.console.life.request_life import RequestLife
from schedtop.console.life.request_list import RequestList
from schedtop.console.life.slow_gaps import Blamer
from schedtop.console.past import sample_sizes
from schedtop.console.past.past import Moment, Past
from schedtop.engine.contract.kv_groups import kinds_of
from schedtop.engine.contract.latencies.front_end import front_end_of
from schedtop.engine.contract.latencies.samples import merge
from schedtop.engine.contract.telemetry import Arrival

STALL_FACTOR = 3.0
"""A gap is slow above this many medians of the window where no SLO is given."""

STALL_DRIFT = 0.1
"""That limit stays as it was first read while it has moved by less than this share."""

MAX_VISITS = 98_304
"""More are read again, from what is still kept: half as many again as the records that are."""

_AT_ONCE = 256
"""Records read between two looks at the clock."""


def read_life(history: Past, moment: Moment, number: int, slo_s: float | None = None) -> RequestLife | None:
    """The life of a request up to `moment`; None if nothing is known of it."""
    return LifeReader(number).read(history, moment, slo_s)


class LifeReader:
    """Reads one life again and again. While the moment only moves on, each record is read once.

    `left` records remain to be read where a call had no time for all of them: the life is that of the last whole one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.left = 0
        self._walk: Walk | None = None
        self._blamer: Blamer | None = None
        self._session: float | None = None

    def read(
        self, history: Past, moment: Moment, slo_s: float | None, within_s: float = math.inf
    ) -> RequestLife | None:
        """As `read_life`. A life still in progress is the same object again."""
        began_s = time.monotonic()
        tracked = moment.state.requests.get(self.number)
        arrival, finish = history.finished.get(self.number, (None, None))
        if tracked is not None:
            arrival, finish = tracked.arrival, None
        if arrival is None:
            return None
        slow_s = slo_s if slo_s is not None else _usual_gap(history, moment) * STALL_FACTOR
        walk, blamer = self._walk, self._blamer
        if walk is None or blamer is None or not self._goes_on(walk, arrival, history, moment, slow_s):
            header = history.header
            front_end = None if header is None else front_end_of(header.settings)
            walk = self._walk = Walk(RequestLife(self.number, arrival, slow_s=slow_s, front_end=front_end))
            blamer = self._blamer = Blamer(walk.life)
            self._session = _session(history)
            records = history.between_times(arrival.arrival_s, moment.seq)
        else:
            records = history.between(walk.seq + 1, moment.seq)
        life, first = walk.life, history.records[0] if history.records else None
        life.tracked, life.finish, life.until_s = tracked, finish, moment.clock_s
        if finish is not None:
            life.until_s = math.inf if finish.e2e_s is None else arrival.arrival_s + finish.e2e_s
        since_arrival = first is None or first.step <= 1 or first.start_s <= arrival.arrival_s
        while not walk.ended and (part := list(islice(records, _AT_ONCE))):
            blamer.through(history, walk.through(part, since_arrival))
            if walk.seq < moment.seq and time.monotonic() - began_s > within_s:
                self.left = moment.seq - walk.seq
                return None
        self.left = 0
        if life.until_s == math.inf:
            life.until_s = walk.end_s
        walk.close()
        life.step = moment.state.step
        blamer.close(history, moment.seq)
        self._read_blocks(life, history, moment)
        return life

    def _read_blocks(self, life: RequestLife, history: Past, moment: Moment) -> None:
        rows = RequestList(history, moment)
        row = rows.row(self.number) if self.number in rows else None
        life.blocks, life.full_blocks = (
            (0, None) if row is None else (row.kv, row.full if rows.has_groups else None)
        )
        kinds = kinds_of(history.header.config) if history.header is not None else []
        life.sharers = sharers(moment, self.number, kinds[0].groups[0] if kinds else 0)

    def _goes_on(self, walk: Walk, arrival: Arrival, history: Past, moment: Moment, slow_s: float) -> bool:
        """Whether what has been read is the beginning of what is asked for."""
        life = walk.life
        same_limit = slow_s == life.slow_s or abs(slow_s - life.slow_s) < STALL_DRIFT * life.slow_s < math.inf
        return (
            arrival == life.arrival
            and same_limit
            and moment.seq >= walk.seq
            and len(life.visits) < MAX_VISITS
            and self._session == _session(history)
        )


def _session(history: Past) -> float | None:
    """Which engine the history is of."""
    return history.header.started_at if history.header is not None else None


def _usual_gap(history: Past, moment: Moment) -> float:
    """The median ITL of the last minute; infinite of too few."""
    median = sample_sizes.quantile(merge(history.latency_columns("itl", moment, 60.0, 60)), 0.5)
    return math.inf if median is None else median


def sharers(moment: Moment, number: int, group: int = 0) -> list[tuple[int, int]]:
    """Who else holds blocks of this request in a KV group, as (number, blocks), the most first."""
    state = moment.state
    tables = state.tables
    if group:
        each = {other: state.group_tables(other) for other in state.requests}
        tables = {other: held[group] for other, held in each.items() if group < len(held)}
    mine = tables.get(number)
    if not mine or not len(moment.state.classes):
        return []
    held = np.zeros(len(moment.state.classes), dtype=bool)
    blocks = np.frombuffer(mine, dtype=np.int32)
    held[blocks[blocks >= 0]] = True
    found = []
    for other, table in tables.items():
        if other != number:
            theirs = np.frombuffer(table, dtype=np.int32)
            common = int(held[theirs[theirs >= 0]].sum())
            if common:
                found.append((other, common))
    return sorted(found, key=lambda pair: -pair[1])
