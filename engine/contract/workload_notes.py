"""A workload described in words: how a trace was read, and what its reader noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {"skipped_bad": "skipped", "dropped": "dropped", "noticed": "noticed"}


def read_as(workload: Mapping[str, Any]) -> str | None:
    """The format and the unit of time a trace was read in; None for a generator."""
    if "format" not in workload:
        return None
    times = workload.get("times")
    return f"{workload['format']}, {f'times are {times}' if times else workload.get('arrivals', 'no times')}"


def notices(workload: Mapping[str, Any]) -> list[str]:
    """One line for each thing that an operator should know before trusting the figures."""
    lines = [str(note) for note in workload.get("notes", ())]
    for kind, word in _WORDS.items():
        for reason, count in workload.get(kind, {}).items():
            lines.append(
                f"{count:,} {'line' if count == 1 else 'lines'} {word}: {reason}{_where(workload, reason)}"
            )
    if inversions := workload.get("inversions"):
        of_all = f" of {workload['rows']:,}" if "rows" in workload else ""
        lines.append(f"{inversions:,}{of_all} rows were out of order: sorted by time")
    return lines


def _where(workload: Mapping[str, Any], reason: str) -> str:
    first = workload.get("first_lines", {}).get(reason)
    return f" (first at line {first})" if first else ""


def as_document(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON values."""
    return {"source": workload.get("source"), "read_as": read_as(workload), "notices": notices(workload)}
