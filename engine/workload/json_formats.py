"""Traces as JSON: one object per request (Mooncake, Bailian, vLLM bench prompts), or vLLM bench results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.workload.fields import ADAPTER_COLUMNS, adapter_name, seconds, token_count
from schedtop.engine.workload.files import Line
from schedtop.engine.workload.results import result_trace
from schedtop.engine.workload.tokens import TEXT_BYTES_PER_TOKEN
from schedtop.engine.workload.trace import BadRowError, PrefixIds, Tally, Trace, TraceRow, note_unused

DEFAULT_OUTPUT_TOKENS = 256
"""vLLM bench's own default where a prompt names no output length."""
PROMPTS_NAME = "vLLM bench prompts"
JSON_ACCEPTS = (
    "Mooncake JSONL (timestamp,input_length,output_length,hash_ids)",
    "Bailian JSONL (the same with chat_id)",
    f"{PROMPTS_NAME} (prompt,output_tokens)",
    "vLLM bench results (input_lens,output_lens,start_times)",
)


@dataclass(frozen=True, slots=True)
class IdFormat:
    """A format of `timestamp, input_length, output_length, hash_ids`: its unit of time and tokens per id."""

    name: str
    units_per_s: float
    times: str
    block_tokens: int


MOONCAKE = IdFormat("Mooncake JSONL", 1000.0, "milliseconds", 512)
BAILIAN = IdFormat("Bailian JSONL", 1.0, "seconds", 16)


def json_trace(first: Line, lines: Iterator[Line], tally: Tally) -> Trace | None:
    """The trace whose first line is `first`, or None if its keys are no known format's."""
    if first[1] == b"{":
        return result_trace(chain([first], lines), tally)
    try:
        keys = _object(first[1]).keys()
    except BadRowError:
        return None
    every = chain([first], lines)
    if {"timestamp", "input_length", "output_length"} <= keys:
        fmt = BAILIAN if {"chat_id", "parent_chat_id", "turn"} & keys else MOONCAKE
        rows = _id_rows(fmt, every, tally)
        trace = Trace(fmt.name, rows, block_tokens=fmt.block_tokens, exact_ids=True, times=fmt.times)
        note_unused(keys, trace.notes)
        return trace
    if "prompt" in keys:
        notes = [
            f"a prompt without output_tokens gets {DEFAULT_OUTPUT_TOKENS}",
            f"without a tokenizer, {TEXT_BYTES_PER_TOKEN} bytes of a prompt stand for a token",
        ]
        return Trace(PROMPTS_NAME, _prompt_rows(every, tally), timed=False, texts=True, notes=notes)
    if {"input_lens", "mean_ttft_ms", "request_throughput"} & keys:
        return result_trace(every, tally)
    return None


def _id_rows(fmt: IdFormat, lines: Iterator[Line], tally: Tally) -> Iterator[TraceRow]:
    for number, line in lines:
        try:
            row = _object(line)
            time_s = seconds(row.get("timestamp"), "timestamp") / fmt.units_per_s
            prompt = _positive(row, "input_length")
            output = _positive(row, "output_length")
            yield TraceRow(number, time_s, prompt, output, _ids(row.get("hash_ids")), adapter=_adapter(row))
        except BadRowError as error:
            tally.reject(number, error)


def _prompt_rows(lines: Iterator[Line], tally: Tally) -> Iterator[TraceRow]:
    for number, line in lines:
        try:
            row = _object(line)
            prompt = row.get("prompt")
            if not isinstance(prompt, str) or not prompt:
                raise BadRowError("prompt is not a text" if prompt != "" else "prompt is empty")
            given = row.get("output_tokens") is not None
            output = _positive(row, "output_tokens") if given else DEFAULT_OUTPUT_TOKENS
            yield TraceRow(number, None, 0, output, text=prompt.encode(), adapter=_adapter(row))
        except BadRowError as error:
            tally.reject(number, error)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadRowError("not a line of JSON", line[:64]) from None
    if not isinstance(value, dict):
        raise BadRowError("not a JSON object", line[:64])
    return value


def _adapter(row: dict[str, Any]) -> str:
    name = next((name for name in ADAPTER_COLUMNS if name in row), None)
    return "" if name is None else adapter_name(row[name], name)


def _positive(row: dict[str, Any], name: str) -> int:
    number = token_count(row.get(name), name)
    if number == 0:
        raise BadRowError(f"{name} is 0")
    return number


def _ids(value: object) -> PrefixIds | None:
    """Ids as uint64; larger or negative ones wrap."""
    if value is None or value == []:
        return None
    try:
        if not isinstance(value, list):
            raise TypeError
        return np.array([number & 0xFFFFFFFFFFFFFFFF for number in value], dtype=np.uint64)
    except TypeError:
        raise BadRowError("hash_ids is not a list of whole numbers", value) from None
