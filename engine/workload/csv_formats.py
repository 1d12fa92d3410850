"""Traces as CSV: one table says which columns make which format; columns are found by name, never by place."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from schedtop.engine.workload.fields import (
    ADAPTER_COLUMNS,
    IMAGE_COLUMNS,
    PARENT_COLUMN,
    PRIORITY_COLUMN,
    SALT_COLUMN,
    SKIP_COLUMN,
    TimeParser,
    adapter_name,
    cache_salt,
    date_stamps,
    parent,
    plain_milliseconds,
    plain_seconds,
    priority,
    skips_prefix_cache,
    token_count,
)
from schedtop.engine.workload.files import Line
from schedtop.engine.workload.trace import (
    WAITS_FOR_ANSWER,
    BadRowError,
    Tally,
    Trace,
    TraceError,
    TraceRow,
    note_unused,
)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Columns of a format, lower-case. `ones` must hold 1 in every row; `zero_drops`: why a row without input or
    output is not a request (None: such a row is bad). A row without a time that has a value in `waits` follows another.
    Any of them may have a
    column of `ADAPTER_COLUMNS` and one of priorities."""

    name: str
    accepts: str
    prompt: str
    output: str
    time: str | None = None
    parser: Callable[[], TimeParser] = plain_seconds
    ones: str | None = None
    zero_drops: tuple[str, str] | None = None
    waits: str | None = None

    @property
    def columns(self) -> set[str]:
        return {self.prompt, self.output} | ({self.time} if self.time else set())


CSV_FORMATS: tuple[CsvFormat, ...] = (
    CsvFormat(
        "Azure LLM inference CSV",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        time="timestamp",
        prompt="contexttokens",
        output="generatedtokens",
        parser=date_stamps,
    ),
    CsvFormat(
        "Splitwise CSV",
        "arrival_timestamp,prompt_size,token_size",
        time="arrival_timestamp",
        prompt="prompt_size",
        output="token_size",
        ones="batch_size",
    ),
    CsvFormat(
        "Vidur CSV",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        time="arrived_at",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
    ),
    CsvFormat(
        "Vidur CSV without times",
        "num_prefill_tokens,num_decode_tokens",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
    ),
    CsvFormat(
        "BLIS CSV",
        "arrived_at,prefill_tokens,decode_tokens",
        time="arrived_at",
        prompt="prefill_tokens",
        output="decode_tokens",
    ),
    CsvFormat(
        "session CSV",
        "arrival_time_s,input_tokens,output_tokens",
        time="arrival_time_s",
        prompt="input_tokens",
        output="output_tokens",
        waits="tool_wait_s",
    ),
    CsvFormat(
        "arrival CSV",
        "arrival_time_ms,input_tokens,output_tokens",
        time="arrival_time_ms",
        prompt="input_tokens",
        output="output_tokens",
        parser=plain_milliseconds,
    ),
    CsvFormat(
        "engine log CSV",
        "timestamp,input_token_length,output_token_length",
        time="timestamp",
        prompt="input_token_length",
        output="output_token_length",
    ),
    CsvFormat(
        "BurstGPT CSV",
        "Timestamp,Request tokens,Response tokens",
        time="timestamp",
        prompt="request tokens",
        output="response tokens",
        zero_drops=("request without input", "failed request (no output)"),
    ),
)


def csv_trace(header: Line, lines: Iterator[Line], tally: Tally) -> Trace | None:
    """The trace under `header`, or None if its columns match no known format."""
    try:
        names = [cell.decode().strip() for cell in _cells(header[1])]
    except (BadRowError, UnicodeDecodeError):
        return None
    lower = [name.lower() for name in names]
    for fmt in CSV_FORMATS:
        if fmt.columns <= set(lower):
            places = {column: (lower.index(column), names[lower.index(column)]) for column in lower}
            rows = _rows(fmt, places, len(names), lines, tally)
            trace = Trace(fmt.name, rows, timed=fmt.time is not None, times=_TIMES[fmt.parser])
            used = fmt.columns | {
                *(PRIORITY_COLUMN, SALT_COLUMN, SKIP_COLUMN, PARENT_COLUMN),
                *ADAPTER_COLUMNS,
                *IMAGE_COLUMNS,
            }
            trace.image_column = next((places[name][1] for name in IMAGE_COLUMNS if name in places), "")
            note_unused((name for name in names if name.lower() not in used), trace.notes)
            return trace
    for sign, word in ((b"\t", "tabs"), (b";", "semicolons")):
        if sign in header[1] and csv_trace((header[0], header[1].replace(sign, b",")), iter(()), tally):
            raise TraceError(f"{tally.name}:{header[0]}: its columns are separated by {word}: write commas")
    return None


_TIMES: dict[Callable[[], TimeParser], str] = {
    plain_seconds: "seconds",
    plain_milliseconds: "milliseconds",
    date_stamps: "dates",
}


def _rows(
    fmt: CsvFormat, places: dict[str, tuple[int, str]], width: int, lines: Iterator[Line], tally: Tally
) -> Iterator[TraceRow]:
    """Each row that is a request. `places`: where a column is, and its name as the file spells it."""
    parse = fmt.parser()
    time_at, time_name = places[fmt.time] if fmt.time else (0, "")
    prompt_at, prompt_name = places[fmt.prompt]
    output_at, output_name = places[fmt.output]
    one_at, one_name = places.get(fmt.ones or "", (None, ""))
    adapter_at, adapter_column = next((places[name] for name in ADAPTER_COLUMNS if name in places), (None, ""))
    priority_at, _ = places.get(PRIORITY_COLUMN, (None, ""))
    waits_at, waits_name = places.get(fmt.waits or "", (None, ""))
    salt_at, _ = places.get(SALT_COLUMN, (None, ""))
    parent_at, _ = places.get(PARENT_COLUMN, (None, ""))
    skip_at, _ = places.get(SKIP_COLUMN, (None, ""))
    image_at, image_name = next((places[name] for name in IMAGE_COLUMNS if name in places), (None, ""))
    for number, line in lines:
        try:
            cells = _cells(line)
            if len(cells) != width:
                raise BadRowError(f"{len(cells)} columns where the header has {width}")
            prompt = token_count(cells[prompt_at], prompt_name)
            output = token_count(cells[output_at], output_name)
            if one_at is not None and token_count(cells[one_at], one_name) != 1:
                raise BadRowError(f"{one_name} other than 1", cells[one_at])
            if waits_at is not None and not cells[time_at] and cells[waits_at]:
                raise BadRowError(f"a row with {waits_name} instead of {time_name}: a turn, {WAITS_FOR_ANSWER}")
            time_s = parse(cells[time_at], time_name) if fmt.time else None
            images = 0 if image_at is None else token_count(cells[image_at], image_name)
            adapter = "" if adapter_at is None else adapter_name(cells[adapter_at], adapter_column)
            also: dict[str, Any] = {
                "priority": 0 if priority_at is None else priority(cells[priority_at]),
                "cache_salt": None if salt_at is None else cache_salt(cells[salt_at]),
                PARENT_COLUMN: "" if parent_at is None else parent(cells[parent_at]),
                SKIP_COLUMN: skip_at is not None and skips_prefix_cache(cells[skip_at]),
            }
            if prompt and (output or tally.pooling):
                yield TraceRow(number, time_s, prompt, output, adapter=adapter, images=images, **also)
            elif fmt.zero_drops is None:
                why = "" if not prompt else ": requests without outputs, such as embeddings, need --pooling"
                raise BadRowError(f"{prompt_name if not prompt else output_name} is 0{why}")
            else:
                tally.drop(fmt.zero_drops[0 if not prompt else 1], number)
        except BadRowError as error:
            tally.reject(number, error)


def _cells(line: bytes) -> list[bytes]:
    if b'"' not in line:
        return line.split(b",")
    try:
        (cells,) = csv.reader([line.decode()], strict=True)
    except (csv.Error, ValueError):
        raise BadRowError("not a line of CSV", line) from None
    return [cell.encode() for cell in cells]
