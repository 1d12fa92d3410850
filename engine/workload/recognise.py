"""Which kind of trace a file is, by its content."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from schedtop.engine.workload.csv_formats import CSV_FORMATS, csv_trace
from schedtop.engine.workload.files import open_file, packing, read_lines
from schedtop.engine.workload.json_formats import JSON_ACCEPTS, json_trace
from schedtop.engine.workload.reports import sharegpt_trace
from schedtop.engine.workload.results import documents
from schedtop.engine.workload.trace import HEAD_BYTES, READERS, Tally, Trace, TraceError


def accepted_files() -> str:
    """The kinds of trace file that are recognised, as messages and help list them."""
    kinds = [f"{fmt.name} ({fmt.accepts})" for fmt in CSV_FORMATS]
    return ", ".join([*kinds, *JSON_ACCEPTS, *(reader.accepts for reader in READERS)]) + "; plain, .gz or .zst"


def open_trace(path: Path, tally: Tally) -> Trace:
    """The trace in `path`, its rows read as they are asked for.

    Raises `TraceError` for a file that cannot be read, is empty or of no kind that is known; its rows raise it at
    a bad line.
    """
    file = open_file(path)
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    for reader in READERS:
        if reader.matches(head):
            file.close()
            return reader.read(path, tally)
    lines = read_lines(file, tally)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: nothing in it but white space or damaged data")
    if first[1].startswith(b"["):
        trace: Trace | None = sharegpt_trace(documents(chain([first], lines), tally, list), tally)
    else:
        trace = (json_trace if first[1].startswith(b"{") else csv_trace)(first, lines, tally)
    if trace is None:
        lines.close()
        raise TraceError(f"{path}:{first[0]}: no workload that is known; accepted: {accepted_files()}")
    packed = packing(head)
    if packed:
        trace.notes.append(f"packed with {packed}")
    return trace
