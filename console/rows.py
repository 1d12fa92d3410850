"""Rows of the request table: built from the shown moment, sorted and filtered. No drawing here."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from schedtop.console import text
from schedtop.console.history import History, Moment
from schedtop.console.state import (
    BLOCKS,
    COMPUTED,
    DRAFTS,
    EMITTED,
    FLAGS,
    NEEDED,
    NUMBER,
    TOKENS,
    State,
    Tracked,
)
from schedtop.engine.telemetry import RowFlag, itl_column

MAX_WAITING = 1000
"""Waiting requests listed while no filter is set: the head of a long queue says enough."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request as the table shows it. None is not known, or not yet."""

    number: int
    id: str
    state: str
    prompt: int
    done: int
    cached: int
    out: int
    max: int
    kv: int
    age: float
    ttft: float | None
    itl: float | None
    preempt: int
    priority: int

    @property
    def progress(self) -> float:
        """Share of prompt and allowed outputs that is done."""
        return (self.done + self.out) / max(1, self.prompt + self.max)


COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("id", "ID", 13),
    ("state", "STATE", 10),
    ("prompt", "PROMPT", 11),
    ("cached", "CACHED", 7),
    ("out", "OUT/MAX", 10),
    ("progress", "PROGRESS", 16),
    ("kv", "KV", 6),
    ("age", "AGE", 7),
    ("ttft", "TTFT", 7),
    ("itl", "ITL", 7),
    ("preempt", "PREEMPT", 8),
    ("priority", "PRIO", 5),
)
"""Field of `Row`, title, and width in cells. The id takes what room is left."""

SORTABLE = tuple(name for name, _, _ in COLUMNS)


def build(history: History, moment: Moment, everyone: bool = False) -> list[Row]:
    """Running requests in the engine's order, then the waiting ones, head first."""
    state = moment.state
    return [*_running(moment), *_waiting(state, state.queue(history.policy), everyone)]


def _running(moment: Moment) -> Iterator[Row]:
    state, record = moment.state, moment.record
    gaps = (
        itl_column(record).tolist() if record is not None and len(record.itl_s) == 4 * state.rows.shape[1] else []
    )
    rows = {column[NUMBER]: (index, column) for index, column in enumerate(state.rows.T.tolist())}
    for number in state.running():
        tracked = state.requests[number]
        index, column = rows.get(number, (-1, None))
        if column is None:
            yield _row(state, tracked, "running", tracked.computed_tokens, tracked.output_tokens, 0, None)
            continue
        gap = gaps[index] if index < len(gaps) else math.nan
        arrival = tracked.arrival
        yield _row(
            state,
            tracked,
            _label(column, tracked),
            min(column[COMPUTED] + column[TOKENS] - column[DRAFTS], column[NEEDED]),
            column[NEEDED] + column[EMITTED] - arrival.prompt_tokens,
            column[BLOCKS],
            None if math.isnan(gap) else gap,
        )


def _label(column: list[int], tracked: Tracked) -> str:
    if not column[TOKENS]:
        return "starved"
    if column[FLAGS] & RowFlag.DECODE:
        return "decode"
    return "recompute" if tracked.preemptions and tracked.first_token_s is not None else "prefill"


def _waiting(state: State, queue: list[int], everyone: bool) -> Iterator[Row]:
    for number in queue if everyone else queue[:MAX_WAITING]:
        tracked = state.requests.get(number)
        if tracked is not None:
            label = "preempted" if tracked.preemptions else "wait"
            yield _row(state, tracked, label, 0, tracked.output_tokens, 0, None)


def _row(state: State, tracked: Tracked, label: str, done: int, out: int, blocks: int, itl_s: float | None) -> Row:
    arrival = tracked.arrival
    return Row(
        number=arrival.number,
        id=text.clean(arrival.id, 60),
        state=label,
        prompt=arrival.prompt_tokens,
        done=done,
        cached=tracked.cached_tokens,
        out=out,
        max=arrival.max_tokens,
        kv=blocks,
        age=state.clock_s - arrival.arrival_s,
        ttft=tracked.ttft_s,
        itl=itl_s,
        preempt=tracked.preemptions,
        priority=arrival.priority,
    )


def order(rows: list[Row], column: str, descending: bool) -> list[Row]:
    """Sorted by a column; equal rows stay as they were, and unknown values come last either way."""
    get = operator.attrgetter(column)
    known = [row for row in rows if get(row) is not None]
    unknown = [row for row in rows if get(row) is None]
    return sorted(known, key=get, reverse=descending) + unknown


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_COMPARISON = re.compile(r"([a-z]+)(>=|<=|>|<|=)(-?\d+(?:\.\d+)?)(ms|s)?")
_NUMBERS = tuple(name for name in SORTABLE if name not in ("id", "state"))


class Filter:
    """Words that must all hold: a piece of the id or the state, `!piece` for its absence, or `kv>40`, `age>2s`."""

    def __init__(self, words: str) -> None:
        self.words = text.clean(words.strip(), 80)
        self._tests = [_test(word) for word in self.words.lower().split()]

    def __bool__(self) -> bool:
        return bool(self._tests)

    def keeps(self, row: Row) -> bool:
        return all(test(row) for test in self._tests)


def _test(word: str) -> Callable[[Row], bool]:
    found = _COMPARISON.fullmatch(word)
    if found is not None and found[1] in _NUMBERS:
        get, compare = operator.attrgetter(found[1]), _OPERATORS[found[2]]
        limit = float(found[3])
        if found[4] == "ms" or (found[4] is None and found[1] in ("ttft", "itl")):
            limit /= 1000  # times are shown in milliseconds
        return lambda row: (value := get(row)) is not None and compare(value, limit)
    if word.startswith("!") and len(word) > 1:
        return lambda row: word[1:] not in row.id.lower() and word[1:] not in row.state
    return lambda row: word in row.id.lower() or word in row.state
