"""What a recording holds, and how its run ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec
from schedtop.engine.contract.latencies.slo import Slo
from schedtop.engine.contract.sanitize import page
from schedtop.engine.contract.telemetry import Header
from schedtop.engine.offline.report import Report, duration_text, report_text
from schedtop.engine.recording.reader import Recording


def document(
    recording: Recording, slo: Slo | None = None, on_progress: Callable[[int], None] = lambda index: None
) -> dict[str, Any]:
    """Plain JSON values: `file`, `header`, `truncated`, `gaps` (records that damage cost), `records`, then a report's
    figures, `steps` and `clock_s` among them. Totals are since the engine's start, percentiles over the recording.

    Reads the whole file; `on_progress` gets the number of records done. Raises `RecordingError`.
    """
    report = Report.of(recording.header, slo)
    snapshot, _ = recording.keyframe_before(0)
    report.begin(snapshot)
    for index, record in enumerate(recording.records()):
        if index % 256 == 0:
            on_progress(index)
        report.add(record)
    figures = report.as_dict()
    del figures["wall_s"]
    return {
        "file": recording.path,
        "header": msgspec.structs.asdict(recording.header),
        "truncated": recording.truncated,
        "gaps": [asdict(gap) for gap in recording.gaps],
        "records": recording.num_records,
        "first_step": snapshot.step + 1,
        "start_s": recording.start_s,
        **figures,
    }


def text(recording: Recording, figures: dict[str, Any]) -> str:
    """The document as text."""
    header = recording.header
    lines = [
        _line("file", recording.path),
        _line("engine", f"{header.engine} {header.engine_version}, started {_date(header)}"),
        _line("model", f"{header.model} on {header.device}"),
        _line("pool", f"{header.num_blocks:,} blocks of {header.block_size} tokens, {header.policy}"),
        _line("workload", _workload(header.workload)),
        _line("records", f"{figures['records']:,} from {duration_text(figures['start_s'])} on"),
        _line("truncated", recording.truncated or "no"),
    ]
    if recording.gaps:
        missing = sum(gap.num_missing for gap in recording.gaps)
        lines.append(_line("", f"{missing:,} records are missing: totals count them, percentiles do not"))
    body = report_text({**figures, "wall_s": None}).splitlines()
    time_line = _line("time", f"{duration_text(figures['clock_s'])} on the engine's clock")
    return page([*lines, *(time_line if line.startswith("time ") else line for line in body)])


def _line(name: str, words: str) -> str:
    return f"{name:<15}{words}"


def _workload(workload: dict[str, Any]) -> str:
    source = str(workload.get("source", "none"))
    rest = ", ".join(f"{name} {value}" for name, value in workload.items() if name in ("rate", "seed", "limit"))
    return f"{source}, {rest}" if rest else source


def _date(header: Header) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(header.started_at))
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
