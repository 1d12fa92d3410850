"""Files read whole: vLLM bench results, one object per run, several where runs were appended; and other reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from schedtop.engine.workload.fields import seconds, token_count
from schedtop.engine.workload.files import Line
from schedtop.engine.workload.reports import guidellm_trace
from schedtop.engine.workload.trace import BadRowError, Tally, Trace, TraceError, TraceRow

RESULTS_NAME = "vLLM bench results"
MAX_RESULT_BYTES = 2**29


def result_trace(lines: Iterator[Line], tally: Tally) -> Trace:
    """The requests of every run in the file; runs follow each other by their duration.

    Without `start_times` requests come at the rate the first run was made with.
    Raises `TraceError` if the first run was saved without its per-request lists.
    """
    runs = documents(lines, tally, dict)
    first = next(runs, None)
    if first is None:
        return Trace(RESULTS_NAME, iter(()))
    if "benchmarks" in first[1]:
        return guidellm_trace(chain([first], runs), tally)
    if "input_lens" not in first[1] or "output_lens" not in first[1]:
        raise TraceError(f"{tally.name}: a vLLM bench result without input_lens and output_lens: save it detailed")
    timed = bool(first[1].get("start_times"))
    trace = Trace(RESULTS_NAME, _rows(chain([first], runs), timed, tally), timed=timed)
    if timed:
        trace.notes.append("runs of one file follow each other by their duration")
    else:
        trace.rate = _rate(first[1].get("request_rate"))
        trace.notes.append("the result has no start_times")
    trace.client_waits_s = _client_waits(first[1].get("queue_times"))
    return trace


def documents(lines: Iterator[Line], tally: Tally, kind: type) -> Iterator[tuple[int, Any]]:
    """First line and content of each value of a `kind`, be they a line each or spread over lines."""
    numbers, texts, size = [], [], 0
    for number, line in lines:
        numbers.append(number)
        texts.append(line.decode("utf-8", "replace"))
        size += len(line)
        if size > MAX_RESULT_BYTES:
            raise TraceError(f"{tally.name}: a result file of more than {MAX_RESULT_BYTES >> 20} MiB")
    text = "\n".join(texts)
    decoder, at, row = json.JSONDecoder(), 0, 0
    while at < len(text):
        line_number = numbers[row]
        try:
            value, end = decoder.raw_decode(text, at)
            if not isinstance(value, kind):
                raise BadRowError("not a JSON object" if kind is dict else "not a JSON list")
            yield line_number, value
        except BadRowError as error:
            tally.reject(line_number, error)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "not JSON that can be read"
            place = text.count("\n", 0, error.pos) if isinstance(error, json.JSONDecodeError) else row
            return tally.reject(numbers[min(place, len(numbers) - 1)], BadRowError(reason))
        row += text.count("\n", at, end)
        at = end
        while at < len(text) and text[at].isspace():
            row += text[at] == "\n"
            at += 1
    return None


def _rows(runs: Iterator[tuple[int, dict[str, Any]]], timed: bool, tally: Tally) -> Iterator[TraceRow]:
    offset_s, ordinal = 0.0, 0
    for line, run in runs:
        try:
            lists = _lists(run, timed)
            first_s = min((_start(value) for value in lists["start_times"]), default=0.0) if timed else 0.0
        except BadRowError as error:
            tally.reject(line, error)
            continue
        span_s = 0.0
        for index, (prompt, output) in enumerate(zip(lists["input_lens"], lists["output_lens"], strict=True)):
            ordinal += 1
            try:
                error_text = lists["errors"][index] if lists["errors"] else ""
                time_s = _start(lists["start_times"][index]) - first_s if timed else None
                span_s = max(span_s, time_s or 0.0)
                prompt_tokens = token_count(prompt, "an entry of input_lens")
                output_tokens = token_count(output, "an entry of output_lens")
            except BadRowError as error:
                tally.reject(line, error)
                continue
            if error_text or not output_tokens or not prompt_tokens:
                tally.drop("failed request", line)
                continue
            yield TraceRow(ordinal, None if time_s is None else offset_s + time_s, prompt_tokens, output_tokens)
        offset_s += _duration(run, span_s)
    return None


def _lists(run: dict[str, Any], timed: bool) -> dict[str, list[Any]]:
    """The aligned lists of a run; `errors` may be empty. Raises `BadRowError` for one missing or too short."""
    lists = {name: run.get(name) for name in ("input_lens", "output_lens", "start_times", "errors")}
    length = len(lists["input_lens"]) if isinstance(lists["input_lens"], list) else -1
    for name, values in lists.items():
        if not values and (name == "errors" or (name == "start_times" and not timed)):
            lists[name] = []
        elif not isinstance(values, list) or len(values) != length:
            raise BadRowError(f"{name} is not a list with one entry per request")
    return lists  # type: ignore[return-value]


def _client_waits(values: object) -> list[float]:
    """How long each request of the first run waited in the client, which limits how many it sends at once."""
    if not isinstance(values, list):
        return []
    return [float(value) for value in values if isinstance(value, int | float) and value >= 0]


def _start(value: object) -> float:
    return seconds(value, "an entry of start_times")


def _duration(run: dict[str, Any], span_s: float) -> float:
    try:
        return max(span_s, seconds(run.get("duration"), "duration"))
    except BadRowError:
        return span_s


def _rate(value: object) -> float | None:
    """Requests/s a run was made with; "inf" sends all at once; None where it is not known."""
    if value in ("inf", float("inf")):
        return float("inf")
    try:
        rate = seconds(value, "request_rate")
    except BadRowError:
        return None
    return rate if rate > 0 else None
