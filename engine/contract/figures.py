"""Steps for other tools: one table of columns, from which CSV and Parquet derive, and whole records as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import msgspec
import numpy as np
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.reading import block_changes, itl_column, row_matrix, table_growth
from schedtop.engine.contract.sanitize import json_bytes, one_line
from schedtop.engine.contract.telemetry import DEFERRED, ROW_FIELDS, StepRecord

Cell = int | float | str | bool | None

PLAIN = (
    "seq",
    "step",
    "executed",
    "start_s",
    "end_s",
    "schedule_s",
    "execute_s",
    "update_s",
    "token_budget",
    "input_budget",
    "scheduled_tokens",
    "decode_tokens",
    "prefill_tokens",
    "draft_tokens",
    "recomputed_tokens",
    "input_rows",
    "limiter",
    "running",
    "waiting",
    "oldest_wait_s",
    "knobs_version",
    "paused",
)
BLOCKS = ("held", "shared", "cached_free", "empty", "stored_tokens", "watermark")
EVENTS = ("arrivals", "admissions", "refusals", "finishes", "preemptions", "knobs")
TOTALS = ("finished", "preemptions", "cached_tokens", "prompt_tokens", "output_tokens", "busy_s")

HOST = ("used_blocks", "blocks", "loads", "sends")
"""`StepRecord.host_blocks`, in order."""

_KINDS = {"executed": bool, "paused": bool, "limiter": str}


def _plain(name: str) -> Callable[[StepRecord], Cell]:
    return lambda record: getattr(record, name)


def _within(part: str, name: str) -> Callable[[StepRecord], Cell]:
    return lambda record: getattr(getattr(record, part), name)


def _count(name: str) -> Callable[[StepRecord], Cell]:
    return lambda record: len(getattr(record, name))


def _deferred(reason: str) -> Callable[[StepRecord], Cell]:
    return lambda record: dict(record.deferred).get(reason, 0)


def _host(place: int) -> Callable[[StepRecord], Cell]:
    return lambda record: record.host_blocks[place] if record.host_blocks else None


def _block_name(name: str) -> str:
    return name if name == "stored_tokens" else f"{name}_blocks"


COLUMNS: dict[str, tuple[type, Callable[[StepRecord], Cell]]] = {
    **{name: (_KINDS.get(name, float if name.endswith("_s") else int), _plain(name)) for name in PLAIN},
    "head": (str, lambda record: None if record.head is None else describe_head(record.head)),
    **{_block_name(name): (int, _within("blocks", name)) for name in BLOCKS},
    **{f"num_{name}": (int, _count(name)) for name in EVENTS},
    **{f"total_{name}": (float if name.endswith("_s") else int, _within("totals", name)) for name in TOTALS},
    **{f"deferred_{reason}": (int, _deferred(reason)) for reason in sorted(DEFERRED)},
    "encoder_tokens": (int, _plain("encoder_tokens")),
    "group_blocks": (str, lambda record: " ".join(map(str, record.group_blocks)) or None),
    **{f"host_{name}": (int, _host(place)) for place, name in enumerate(HOST)},
    "num_swapped": (int, lambda record: sum(entry.swapped for entry in record.preemptions)),
    "total_external_tokens": (int, _within("totals", "external_tokens")),
}
"""Each column's type, and its value of a record; None is unknown."""


def write_csv(records: Iterable[StepRecord], file: BinaryIO) -> None:
    """A header line, then a line of figures per record."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(map(row_of, records))
    text.detach()


def write_jsonl(records: Iterable[StepRecord], file: BinaryIO) -> None:
    """One line per record, with every field."""
    encode = msgspec.json.Encoder().encode
    for record in records:
        file.write(json_bytes(encode(document_of(record))) + b"\n")


def row_of(record: StepRecord) -> list[Cell]:
    """A record's figures in the order of `COLUMNS`."""
    cells = [value(record) for _, value in COLUMNS.values()]
    return [one_line(cell) if isinstance(cell, str) else cell for cell in cells]


def document_of(record: StepRecord) -> dict[str, Any]:
    """A whole record as plain JSON values by field name, packed fields expanded; NaN is null."""
    blocks, classes = block_changes(record)
    gaps_s = [None if gap_s != gap_s else gap_s for gap_s in itl_column(record).tolist()]
    rows = row_matrix(record).T.tolist()
    packed = {
        "rows": [dict(zip(ROW_FIELDS, row, strict=True)) for row in rows],
        "itl_s": gaps_s,
        "changed_blocks": [list(pair) for pair in zip(blocks.tolist(), classes.tolist(), strict=True)],
        "grown": _grown(record),
        "proposed": {
            str(number): count
            for number, count in np.frombuffer(record.proposed, dtype=np.int32).reshape(-1, 2).tolist()
        },
    }
    return {
        name: packed[name] if name in packed else _named(getattr(record, name))
        for name in record.__struct_fields__
        if name not in ("grown_blocks", "grown_groups")
    }


def _grown(record: StepRecord) -> dict[str, Any]:
    """The blocks each request got, per KV group if there are several."""
    growth = [
        (str(number), np.frombuffer(ids, dtype=np.int32).tolist())
        for number, ids in table_growth(record.grown, record.grown_blocks)
    ]
    if not record.grown_groups:
        return dict(growth)
    by_group: dict[str, dict[str, list[int]]] = {}
    for (number, ids), group in zip(growth, record.grown_groups, strict=True):
        by_group.setdefault(number, {})[str(group)] = ids
    return by_group


def _named(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
