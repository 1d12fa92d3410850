"""Writing what is on the screen to files, never over an existing one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from schedtop.engine.contract import figures
from schedtop.engine.contract.files.output_files import make_folder, open_new
from schedtop.engine.contract.telemetry import StepRecord


def export_steps(records: Sequence[StepRecord], folder: Path) -> list[Path]:
    """Write records as JSONL (whole) and CSV (figures). Raises `OSError`."""
    stem = f"schedtop-steps-{records[0].step}-{records[-1].step}"
    paths = []
    for ending, write in ((".jsonl", figures.write_jsonl), (".csv", figures.write_csv)):
        data = io.BytesIO()
        write(records, data)
        paths.append(_write(folder, stem + ending, data.getvalue()))
    return paths


def save_text(folder: Path, name: str, words: str) -> Path:
    """Write a text file. Raises `OSError`."""
    return _write(folder, name, words.encode())


def _write(folder: Path, name: str, data: bytes) -> Path:
    make_folder(folder)
    stem, dot, ending = name.rpartition(".")
    for number in range(10_000):
        path = folder / (name if not number else f"{stem}-{number}{dot}{ending}")
        try:
            file = open_new(path)
        except FileExistsError:
            continue
        try:
            with file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)  # a part of it would pass for the whole
            raise
        return path
    raise OSError(f"{folder} is full of files called {stem}")
