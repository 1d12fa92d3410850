"""A recording as a workload: the requests it saw, with the prefixes they shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.prefixes.paths import path_keys
from schedtop.engine.contract.telemetry import Arrival, FinishReason
from schedtop.engine.handoff.request import Image
from schedtop.engine.recording.frames import MARK, MARK_BYTES, RecordingError
from schedtop.engine.recording.reader import Recording
from schedtop.engine.workload.trace import (
    FileReader,
    PrefixIds,
    Tally,
    Trace,
    TraceError,
    TraceRow,
    register_reader,
)


def looks_like_recording(path: Path) -> bool:
    """Recognised by the file's first bytes."""
    if odd_file(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(MARK_BYTES) == MARK
    except OSError:
        return False


def read_arrivals(path: Path, tally: Tally) -> Trace:
    """The requests of a recording in order of arrival. An output has its maximum length unless the model stopped it.

    Raises `TraceError` for a file of which nothing can be read.
    """
    try:
        with Recording(path) as recording:
            rows = _rows(recording)
            notes = [recording.truncated] if recording.truncated else []
            if any(row.placed_images for row in rows):
                notes.append(
                    "it has images: --encoder-budget N encodes N of their tokens in a step, else they cost nothing"
                )
            return Trace("schedtop recording", iter(rows), block_tokens=recording.header.block_size, notes=notes)
    except RecordingError as error:
        raise TraceError(str(error)) from None


def prefix_ids(arrival: Arrival) -> PrefixIds | None:
    """One number per full block of an arrival's prompt, equal where all up to there is; None without any."""
    if not arrival.prefix_keys:
        return None
    return np.frombuffer(b"".join(path_keys(arrival.prefix_keys)), dtype="<u8").astype(np.uint64)


def _rows(recording: Recording) -> list[TraceRow]:
    arrivals: dict[int, Arrival] = {}
    stopped: dict[int, int] = {}
    for record in recording.records():
        arrivals.update({arrival.number: arrival for arrival in record.arrivals})
        for finish in record.finishes:
            if finish.reason == FinishReason.STOP:
                stopped[finish.number] = finish.output_tokens
    return list(_as_rows(arrivals, stopped))


def _as_rows(arrivals: dict[int, Arrival], stopped: dict[int, int]) -> Iterator[TraceRow]:
    for number, arrival in arrivals.items():
        yield TraceRow(
            line=number + 1,
            time_s=arrival.arrival_s,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=stopped.get(number, arrival.max_tokens),
            prefix_ids=prefix_ids(arrival),
            priority=arrival.priority,
            id=arrival.id,
            adapter=arrival.adapter_label,
            skip_reading_prefix_cache=arrival.skip_reading_prefix_cache,
            parent=arrival.parent,
            placed_images=tuple(Image(*image) for image in arrival.images),
        )


register_reader(FileReader("recording", "schedtop recordings", lambda head: head.startswith(MARK), read_arrivals))
