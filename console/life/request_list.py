"""Rows of the request table: built from the shown moment, sorted and filtered. No drawing here."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from schedtop.console.drawing import text
from schedtop.console.life.phases import phase_of_row
from schedtop.console.past.past import Moment, Past
from schedtop.console.past.state import (
    BLOCKS,
    COMPUTED,
    DRAFTS,
    EMITTED,
    FLAGS,
    NEEDED,
    NUMBER,
    TOKENS,
)
from schedtop.engine.contract.kv_groups import kinds_of
from schedtop.engine.contract.reading import itl_column
from schedtop.engine.contract.telemetry import RowFlag

MAX_WAITING = 1000
"""Waiting requests listed while no filter is set: the head of a long queue says enough."""


class RequestRow(NamedTuple):
    """One request as the table shows it, its client before its id. None is not known, or not yet.

    `done` are tokens of the prompt that have state; `computed` of `needed` all that have, outputs too: what a recompute
    has to get back. `adapter` is what its LoRA adapter is called, empty for none. `full` are
    those of the `kv` blocks that full attention holds, where other layers forget. `parent` is whose child it is.
    """

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
    computed: int
    needed: int
    adapter: str = ""
    full: int = 0
    parent: str = ""

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
    ("full", "FULL", 6),
    ("age", "AGE", 7),
    ("ttft", "TTFT", 7),
    ("itl", "ITL", 7),
    ("preempt", "PREEMPT", 8),
    ("priority", "PRIO", 6),
    ("adapter", "ADAPTER", 12),
    ("parent", "PARENT", 12),
)
"""Field of `RequestRow`, title, and width in cells. The id takes what room is left."""


class RequestList:
    """The live requests of a moment: `numbers` are the running ones in the engine's order, then the queue.

    Rows are made when they are asked for: a screen shows twenty of what may be thousands.
    """

    def __init__(self, history: Past, moment: Moment, everyone: bool = False) -> None:
        state, record = moment.state, moment.record
        queue = state.queue(history.policy)
        self.numbers = state.running() + (queue if everyone else queue[:MAX_WAITING])
        self._state = state
        self._kinds = kinds_of(history.header.config) if history.header is not None else []
        self._columns: dict[int, list[int]] = {column[NUMBER]: column for column in state.rows.T.tolist()}
        self._gaps: dict[int, float] = {}
        if record is not None and len(record.itl_s) == 4 * state.rows.shape[1]:
            self._gaps = dict(zip(self._columns, itl_column(record).tolist(), strict=True))

    def __contains__(self, number: object) -> bool:
        return number in self._state.requests

    def row(self, number: int) -> RequestRow:
        """All figures of one request; raises `KeyError` once it is gone from a live state."""
        tracked = self._state.requests[number]
        arrival, column, gap = tracked.arrival, self._column(number), math.nan
        if column is None:
            label = ("preempted" if tracked.preemptions else "wait") if tracked.waiting else "running"
            label = "deferred" if tracked.waiting and tracked.deferred else label
            computed, out = tracked.computed_tokens, tracked.output_tokens
            needed = arrival.prompt_tokens + out
        else:
            label, needed = _label(column, arrival.prompt_tokens), column[NEEDED]
            computed = min(column[COMPUTED] + column[TOKENS] - column[DRAFTS], needed)
            out = needed + column[EMITTED] - arrival.prompt_tokens
            gap = self._gaps.get(number, math.nan)
        return RequestRow(
            number=number,
            id=self.id(number),
            state=label,
            prompt=arrival.prompt_tokens,
            done=min(computed, arrival.prompt_tokens),
            cached=tracked.cached_tokens,
            out=out,
            max=arrival.max_tokens,
            kv=self._blocks(number),
            age=self._state.clock_s - arrival.arrival_s,
            ttft=tracked.ttft_s,
            itl=None if math.isnan(gap) else gap,
            preempt=tracked.preemptions,
            priority=arrival.priority,
            computed=computed,
            needed=needed,
            adapter=text.identity(arrival.adapter_label, 40),
            full=self._full_blocks(number),
            parent=text.identity(arrival.parent, 40),
        )

    def id(self, number: int) -> str:
        """What a request is called, its client before it."""
        arrival = self._state.requests[number].arrival
        return text.identity(f"{arrival.client} {arrival.id}" if arrival.client else arrival.id)

    @property
    def has_groups(self) -> bool:
        """Whether layers keep state in several KV groups."""
        return bool(self._kinds)

    def _full_blocks(self, number: int) -> int:
        places = [place for kind in self._kinds if kind.full for place in kind.groups]
        tables = self._state.group_tables(number) if places else []
        return sum(len(tables[place]) // 4 for place in places if place < len(tables))

    @property
    def has_adapters(self) -> bool:
        """Whether anybody asks for a LoRA adapter."""
        return any(self._state.requests[number].arrival.adapter for number in self.numbers)

    @property
    def has_parents(self) -> bool:
        """Whether anybody is the child of a request for several answers."""
        return any(self._state.requests[number].arrival.parent for number in self.numbers)

    def ordered(self, numbers: list[int], column: str, descending: bool) -> list[int]:
        """Sorted by a column; equal ones stay as they were, and unknown values come last either way."""
        if column == "kv":
            keys = {number: self._blocks(number) for number in numbers}
            return sorted(numbers, key=keys.__getitem__, reverse=descending)
        get = operator.attrgetter(column)
        values = {number: get(self.row(number)) for number in numbers}
        known = [number for number in numbers if values[number] is not None]
        unknown = [number for number in numbers if values[number] is None]
        return sorted(known, key=values.__getitem__, reverse=descending) + unknown

    def _column(self, number: int) -> list[int] | None:
        """Its row in the newest step; None while it waits, and before the first step that a console sees."""
        return None if self._state.requests[number].waiting else self._columns.get(number)

    def _blocks(self, number: int) -> int:
        if self._state.requests[number].waiting:
            return 0
        column = self._column(number)
        if column is not None:
            return column[BLOCKS]
        return sum(len(table) // 4 for table in self._state.group_tables(number))


def _label(column: list[int], prompt_tokens: int) -> str:
    return phase_of_row(column[TOKENS], bool(column[FLAGS] & RowFlag.DECODE), column[NEEDED], prompt_tokens)


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_COMPARISON = re.compile(r"([^<>=]*)(>=|<=|>|<|=)(.*)")
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(\D*)")
_MS = {"": 1e-3, "ms": 1e-3, "s": 1.0}
_UNITS: dict[str, dict[str, float]] = {
    **{name: {"": 1.0} for name in ("prompt", "cached", "out", "kv", "full", "preempt", "priority")},
    "progress": {"": 1.0, "%": 0.01},
    "age": {"": 1.0, "s": 1.0, "ms": 1e-3},
    "ttft": _MS,
    "itl": _MS,
}
"""What can be compared, and what each unit behind a number is worth; as in the table, TTFT and ITL are in ms."""

Test = Callable[[RequestRow], bool]


class FilterError(ValueError):
    """A word that is not a test; the text says why, and what would be one."""


class Filter:
    """Words that must all hold: a piece of id, state, adapter or parent, `kv>40`, `age>2s`; `!` excludes.

    What is not understood keeps everything and is reported in `problems`.
    """

    def __init__(self, words: str) -> None:
        self.words = text.clean(words.strip(), 80)
        self.problems: list[str] = []
        self._tests: list[Test] = []
        for word in self.words.lower().split():
            try:
                self._tests.append(_test(word))
            except FilterError as error:
                self.problems.append(str(error))

    def __bool__(self) -> bool:
        return bool(self.words)

    def keeps(self, row: RequestRow) -> bool:
        return all(test(row) for test in self._tests)


def _test(word: str) -> Test:
    if word.startswith("!"):
        if word == "!":
            raise FilterError("! needs a word after it, as in !decode")
        inner = _test(word[1:])
        return lambda row: not inner(row)
    found = _COMPARISON.fullmatch(word)
    if found is not None:
        return _comparison(word, *found.groups())
    return lambda row: any(word in said.lower() for said in (row.id, row.state, row.adapter, row.parent))


def _comparison(word: str, name: str, sign: str, limit: str) -> Test:
    field = "priority" if name == "prio" else name
    if field in ("id", "state", "adapter", "parent"):
        raise FilterError(f"{word}: write {limit or 'a piece of it'} alone")
    if field not in _UNITS:
        raise FilterError(f"{word}: compare {', '.join(_UNITS)}")
    units = [unit for unit in _UNITS[field] if unit]
    if not limit:
        raise FilterError(f"{word} needs a number, as in {word}40{''.join(units[:1])}")
    found = _NUMBER.fullmatch(limit)
    if found is None or found[2] not in _UNITS[field]:
        behind = f" ({' or '.join(units)} may follow one)" if units else ""
        raise FilterError(f"{word}: {limit} is not a number{behind}")
    get, compare = operator.attrgetter(field), _OPERATORS[sign]
    bound = float(found[1]) * _UNITS[field][found[2]]
    return lambda row: (value := get(row)) is not None and compare(value, bound)
