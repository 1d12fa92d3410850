"""Traces as JSON: one object per request (Mooncake, Bailian, prompts as texts), or what other modules read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from schedtop.engine.workload.fields import (
    ADAPTER_COLUMNS,
    IMAGE_COLUMNS,
    PARENT_COLUMN,
    PRIORITY_COLUMN,
    SALT_COLUMN,
    SKIP_COLUMN,
    adapter_name,
    cache_salt,
    parent,
    priority,
    seconds,
    skips_prefix_cache,
    token_count,
)
from schedtop.engine.workload.files import Line
from schedtop.engine.workload.json_lines import json_object, positive, prefix_ids
from schedtop.engine.workload.nested_formats import NESTED_FORMATS, nested_trace
from schedtop.engine.workload.reports import GUIDELLM, SHAREGPT
from schedtop.engine.workload.results import result_trace
from schedtop.engine.workload.tokens import TEXT_BYTES_PER_TOKEN
from schedtop.engine.workload.trace import (
    WAITS_FOR_ANSWER,
    BadRowError,
    Tally,
    Trace,
    TraceError,
    TraceRow,
    note_unused,
)

DEFAULT_OUTPUT_TOKENS = 256
"""vLLM bench's own default where a prompt names no output length."""


@dataclass(frozen=True, slots=True)
class IdFormat:
    """A format of `timestamp, input_length, output_length, hash_ids`: its unit of time and tokens per id. Without a
    `timestamp` in its first line it has no times."""

    name: str
    units_per_s: float
    times: str
    block_tokens: int


MOONCAKE = IdFormat("Mooncake JSONL", 1000.0, "milliseconds", 512)
BAILIAN = IdFormat("Bailian JSONL", 1.0, "seconds", 16)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A format of prompts as texts: the keys of text and output length. A `timestamp` is in milliseconds."""

    name: str
    text: str
    output: str


TEXT_FORMATS = (
    TextFormat("vLLM bench prompts", "prompt", "output_tokens"),
    TextFormat("AIPerf prompts", "text_input", "output_length"),
)
JSON_ACCEPTS = (
    "Mooncake JSONL (timestamp,input_length,output_length,hash_ids)",
    "Bailian JSONL (the same with chat_id)",
    *(f"{fmt.name} ({fmt.text},{fmt.output})" for fmt in TEXT_FORMATS),
    *(f"{nested.name} ({nested.accepts})" for nested in NESTED_FORMATS),
    "vLLM bench results (input_lens,output_lens,start_times)",
    f"{GUIDELLM} (benchmarks)",
    f"{SHAREGPT} (conversations)",
)


def json_trace(first: Line, lines: Iterator[Line], tally: Tally) -> Trace | None:
    """The trace whose first line is `first`, or None if its keys match no known format."""
    every = chain([first], lines)
    if first[1] == b"{":
        return result_trace(every, tally)
    try:
        row = json_object(first[1])
    except BadRowError:
        return None
    keys = row.keys()
    if {"input_length", "output_length"} <= keys:
        fmt = BAILIAN if {"chat_id", "parent_chat_id", "turn"} & keys else MOONCAKE
        timed = bool({"timestamp", "delay"} & keys)
        name = fmt.name if timed else f"{fmt.name} without times"
        rows = _id_rows(fmt, timed, every, tally)
        trace = Trace(name, rows, timed, block_tokens=fmt.block_tokens, exact_ids=True, times=fmt.times)
        trace.image_column = _image_column(keys)
        note_unused(keys, trace.notes)
        return trace
    texts = next((fmt for fmt in TEXT_FORMATS if fmt.text in keys), None)
    if texts is not None:
        notes = [
            f"a prompt without {texts.output} gets {DEFAULT_OUTPUT_TOKENS}",
            f"without a tokenizer, {TEXT_BYTES_PER_TOKEN} bytes of a prompt stand for a token",
        ]
        timed = "timestamp" in keys
        note_unused(keys, notes)
        rows = _text_rows(texts, timed, every, tally)
        trace = Trace(texts.name, rows, timed, texts=True, times="milliseconds", notes=notes)
        trace.image_column = _image_column(keys)
        return trace
    if {"input_lens", "mean_ttft_ms", "request_throughput", "benchmarks"} & keys:
        return result_trace(every, tally)
    if {"out_lens", "tool_times"} <= keys:
        raise TraceError(f"{tally.name}:{first[0]}: rollouts are not read: each has turns, {WAITS_FOR_ANSWER}")
    return nested_trace(first[0], row, every, tally)


def _id_rows(fmt: IdFormat, timed: bool, lines: Iterator[Line], tally: Tally) -> Iterator[TraceRow]:
    for number, line in lines:
        try:
            row = json_object(line)
            time_s = _time_s(row, fmt.units_per_s) if timed else None
            prompt = positive(row, "input_length")
            name = "output_length"
            output = token_count(row.get(name), name) if tally.pooling else positive(row, name)
            ids = prefix_ids(row.get("hash_ids"))
            yield TraceRow(number, time_s, prompt, output, ids, **_also(row))
        except BadRowError as error:
            tally.reject(number, error)


def _text_rows(fmt: TextFormat, timed: bool, lines: Iterator[Line], tally: Tally) -> Iterator[TraceRow]:
    for number, line in lines:
        try:
            row = json_object(line)
            prompt = row.get(fmt.text)
            if not isinstance(prompt, str) or not prompt:
                raise BadRowError(f"{fmt.text} is not a text" if prompt != "" else f"{fmt.text} is empty")
            time_s = _time_s(row, 1000.0) if timed else None
            given = row.get(fmt.output) is not None
            output = positive(row, fmt.output) if given else DEFAULT_OUTPUT_TOKENS
            yield TraceRow(number, time_s, 0, output, text=prompt.encode(), **_also(row))
        except BadRowError as error:
            tally.reject(number, error)


def _time_s(row: dict[str, Any], units_per_s: float) -> float:
    if row.get("timestamp") is None and row.get("delay") is not None:
        raise BadRowError(f"a row with delay instead of timestamp: a turn, {WAITS_FOR_ANSWER}")
    return seconds(row.get("timestamp"), "timestamp") / units_per_s


def _image_column(keys: Iterable[str]) -> str:
    return next((key for key in keys if key.lower() in IMAGE_COLUMNS), "")


def _also(row: dict[str, Any]) -> dict[str, Any]:
    """Optional fields of any format."""
    name = next((name for name in ADAPTER_COLUMNS if name in row), None)
    adapter = "" if name is None else adapter_name(row[name], name)
    image = _image_column(row)
    return {
        "images": token_count(row[image], image) if image else 0,
        "priority": priority(row.get(PRIORITY_COLUMN)),
        "adapter": adapter,
        "cache_salt": cache_salt(row.get(SALT_COLUMN)),
        PARENT_COLUMN: parent(row.get(PARENT_COLUMN)),
        SKIP_COLUMN: skips_prefix_cache(row.get(SKIP_COLUMN)),
    }
