"""Exports a recording for other tools, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.figures import COLUMNS, row_of, write_csv, write_jsonl
from schedtop.engine.contract.files.output_files import whole_file
from schedtop.engine.contract.sanitize import json_bytes
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.inspect.trace_events import trace_events
from schedtop.engine.recording.reader import Recording

ROWS_AT_ONCE = 4096

Records = Iterator[StepRecord]

_encoder = msgspec.json.Encoder()


def _perfetto(recording: Recording, records: Records, file: BinaryIO) -> None:
    snapshot, _ = recording.keyframe_before(0)
    header = recording.header
    about = {"engine": header.engine, "model": header.model, "device": header.device, "config": header.config}
    file.write(b'{"displayTimeUnit":"ms","otherData":' + json_bytes(_encoder.encode(about)) + b',"traceEvents":[')
    separator = b"\n"
    for event in trace_events(snapshot, records, header.model):
        file.write(separator + json_bytes(_encoder.encode(event)))
        separator = b",\n"
    file.write(b"\n]}\n")


def _parquet(recording: Recording, records: Records, file: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, (kind, _) in COLUMNS.items()])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        rows: list[list[Any]] = []
        for record in records:
            rows.append(row_of(record))
            if len(rows) == ROWS_AT_ONCE:
                writer.write_batch(_batch(rows, schema))
                rows = []
        if rows:
            writer.write_batch(_batch(rows, schema))


def _batch(rows: list[list[Any]], schema: Any) -> Any:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, type) for column, type in zip(columns, schema.types, strict=True)], schema
    )


FORMATS: dict[str, tuple[str, Callable[[Recording, Records, BinaryIO], None]]] = {
    "perfetto": (".trace.json", _perfetto),
    "csv": (".csv", lambda recording, records, file: write_csv(records, file)),
    "parquet": (".parquet", _parquet),
    "jsonl": (".jsonl", lambda recording, records, file: write_jsonl(records, file)),
}
"""Each format's file ending and writer."""


def check_format(name: str) -> None:
    """Raises `ConfigError` if a format's library is missing."""
    if name == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ConfigError("parquet needs pyarrow: pip install 'schedtop[parquet]'") from None


def default_path(recording: str, name: str) -> Path:
    """The default output path: beside the recording, with the format's suffix."""
    return Path(recording).with_suffix(FORMATS[name][0])


def export(
    recording: Recording,
    name: str,
    target: Path | BinaryIO,
    on_progress: Callable[[int], None] = lambda index: None,
) -> None:
    """Write a recording in one of `FORMATS`. The file is complete or absent.

    `on_progress` gets the number of records done. Raises `RecordingError`, `OSError`.
    """
    write = FORMATS[name][1]
    if not isinstance(target, Path):
        write(recording, _reported(recording, on_progress), target)
        return
    with whole_file(target) as file:
        write(recording, _reported(recording, on_progress), file)


def _reported(recording: Recording, on_progress: Callable[[int], None]) -> Records:
    for index, record in enumerate(recording.records()):
        if index % 256 == 0:
            on_progress(index)
        yield record
