"""Writing what is on the screen to files, never over an existing one."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
from schedtop.engine.telemetry import StepRecord, row_matrix

FIELDS = (
    "seq",
    "step",
    "start_s",
    "end_s",
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
    "held_blocks",
    "shared_blocks",
    "cached_free_blocks",
    "empty_blocks",
    "watermark_blocks",
    "admissions",
    "preemptions",
    "finishes",
)


def export_steps(records: Sequence[StepRecord], folder: Path) -> list[Path]:
    """Write records as JSONL (whole) and CSV (figures). Raises `OSError`."""
    stem = f"schedtop-steps-{records[0].step}-{records[-1].step}"
    jsonl = b"".join(msgspec.json.encode(_plain(record)) + b"\n" for record in records)
    return [_write(folder, f"{stem}.jsonl", jsonl), _write(folder, f"{stem}.csv", _csv(records).encode())]


def save_text(folder: Path, name: str, words: str) -> Path:
    """Write a text file. Raises `OSError`."""
    return _write(folder, name, words.encode())


def _write(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem, dot, ending = name.rpartition(".")
    for number in range(10_000):
        path = folder / (name if not number else f"{stem}-{number}{dot}{ending}")
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            continue
        return path
    raise OSError(f"{folder} is full of files called {stem}")


def _plain(record: StepRecord) -> dict[str, object]:
    """A record as JSON values, its rows spelt out."""
    plain: dict[str, object] = msgspec.structs.asdict(record)
    plain["rows"] = row_matrix(record).T.tolist()
    for packed in ("itl_s", "changed_blocks", "grown", "grown_blocks"):
        del plain[packed]
    return plain


def _csv(records: Sequence[StepRecord]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(FIELDS)
    for record in records:
        writer.writerow([_cell(record, field) for field in FIELDS])
    return out.getvalue()


def _cell(record: StepRecord, field: str) -> object:
    if field.endswith("_blocks"):
        return getattr(record.blocks, field.removesuffix("_blocks"))
    value = getattr(record, field)
    return len(value) if isinstance(value, tuple) else value
