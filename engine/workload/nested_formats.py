"""Traces as JSON lines that hold several requests, or one in nests of its own: a table of what each line gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from schedtop.engine.workload.fields import ROW_COLUMNS, seconds
from schedtop.engine.workload.files import Line
from schedtop.engine.workload.json_lines import json_object, positive, prefix_ids
from schedtop.engine.workload.trace import BadRowError, Tally, Trace, TraceError, TraceRow, note_unused

Object = dict[str, Any]
Asked = tuple[float, int, int, object]
"""Seconds, prompt tokens, output tokens, prefix ids."""


@dataclass(frozen=True, slots=True)
class NestedFormat:
    """A format whose lines have `keys`; `asks` gives a line's requests, `drops` says why a line is none."""

    name: str
    accepts: str
    keys: frozenset[str]
    times: str
    asks: Callable[[Object], Iterable[Asked]]
    drops: Callable[[Object], str | None] = lambda line: None
    block_key: str | None = None
    """Where the first line says how many tokens an id represents."""


def _session(line: Object) -> Iterator[Asked]:
    for turn in _objects(line, "requests"):
        yield seconds(turn.get("t"), "t"), positive(turn, "in"), positive(turn, "out"), turn.get("hash_ids")


def _moment(line: Object) -> Iterator[Asked]:
    time_s = seconds(line.get("timestamp"), "timestamp") / 1000
    for ask in _objects(line, "requests"):
        yield time_s, positive(ask, "Prompt Length"), positive(ask, "Output Length"), None


def _export(line: Object) -> Iterator[Asked]:
    metadata, metrics = (line[name] if isinstance(line[name], dict) else {} for name in ("metadata", "metrics"))
    start_s = seconds(_over_1e9(metadata.get("request_start_ns")), "request_start_ns")
    prompt, output = (
        _value(metrics.get(name), name) for name in ("input_sequence_length", "output_sequence_length")
    )
    yield start_s, prompt, output, None


NESTED_FORMATS: tuple[NestedFormat, ...] = (
    NestedFormat(
        "WEKA JSONL",
        "requests with t,in,out,hash_ids; block_size",
        frozenset(("block_size", "requests")),
        "seconds",
        _session,
        block_key="block_size",
    ),
    NestedFormat(
        "AIBrix JSONL",
        "timestamp; requests with Prompt Length,Output Length",
        frozenset(("timestamp", "requests")),
        "milliseconds",
        _moment,
    ),
    NestedFormat(
        "AIPerf export",
        "metadata.request_start_ns; metrics",
        frozenset(("metadata", "metrics")),
        "nanoseconds",
        _export,
        drops=lambda line: "failed request" if line.get("error") else None,
    ),
)


def nested_trace(number: int, first: Object, lines: Iterator[Line], tally: Tally) -> Trace | None:
    """The trace of `lines`, the first of which holds `first`, or None if its keys match no known format."""
    fmt = next((fmt for fmt in NESTED_FORMATS if fmt.keys <= first.keys()), None)
    if fmt is None:
        return None
    try:
        width = positive(first, fmt.block_key) if fmt.block_key else None
    except BadRowError as error:
        raise TraceError(f"{tally.name}:{number}: {error}") from None
    trace = Trace(fmt.name, _rows(fmt, lines, tally), block_tokens=width, exact_ids=bool(width), times=fmt.times)
    inner = first.get("requests")
    names = [name for ask in inner if isinstance(ask, dict) for name in ask] if isinstance(inner, list) else []
    note_unused(dict.fromkeys([*first, *names]), trace.notes, ROW_COLUMNS)
    return trace


def _rows(fmt: NestedFormat, lines: Iterator[Line], tally: Tally) -> Iterator[TraceRow]:
    for number, text in lines:
        try:
            line = json_object(text)
            if missing := sorted(fmt.keys - line.keys()):
                raise BadRowError(f"{missing[0]} is missing")
            if why := fmt.drops(line):
                tally.drop(why, number)
                continue
            asks = [(at_s, prompt, output, prefix_ids(ids)) for at_s, prompt, output, ids in fmt.asks(line)]
        except BadRowError as error:
            tally.reject(number, error)
            continue
        for place, (time_s, prompt, output, ids) in enumerate(asks):
            yield TraceRow(number, time_s, prompt, output, ids, place=place if len(asks) > 1 else None)


def _objects(line: Object, name: str) -> list[Object]:
    found = line.get(name)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadRowError(f"{name} is not a list of objects")
    return found


def _value(metric: object, name: str) -> int:
    """A metric as `{"value", "unit"}`."""
    return positive({name: metric.get("value") if isinstance(metric, dict) else metric}, name)


def _over_1e9(value: object) -> object:
    return value / 1e9 if isinstance(value, int | float) and not isinstance(value, bool) else value
