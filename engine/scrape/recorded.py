"""Recordings of metrics pages: a line of JSON per page that was read, after a line that says what the file is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from schedtop.engine.scrape.page import EngineKey, PageError, PageReading

KIND = "schedtop metrics recording"
VERSION = 1
MAX_FILE_BYTES = 1 << 30


Kind = TypeVar("Kind", bound=msgspec.Struct)


class Opening(msgspec.Struct, frozen=True):
    """The first line."""

    kind: str
    version: int


class PageRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One server's page at a time (Unix seconds), or why there was none."""

    at_s: float
    server: str
    engines: list[tuple[str, str, PageReading]] = []
    error: str = ""

    def readings(self) -> dict[EngineKey, PageReading]:
        """By engine, as `read_page` gives them."""
        return {EngineKey(model, engine): reading for model, engine, reading in self.engines}


class PageWriter:
    """Appends to a new file; what was written survives a crash. Raises `OSError`."""

    def __init__(self, path: str) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._encoder = msgspec.json.Encoder()
        self.num_pages = 0
        self._write(Opening(KIND, VERSION))

    def page(self, at_s: float, server: str, engines: dict[EngineKey, PageReading], error: str = "") -> None:
        """One page."""
        found = [(key.model, key.engine, _finite(reading)) for key, reading in engines.items()]
        self._write(PageRecord(at_s, server, found, error))
        self.num_pages += 1

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


_MOST = 1e308
"""Stands for infinity, which JSON has not."""


def _finite(reading: PageReading) -> PageReading:
    return _with_bounds(reading, float("inf"), _MOST)


def _with_bounds(reading: PageReading, old: float, new: float) -> PageReading:
    histograms = {
        name: [(new if bound == old else bound, count) for bound, count in buckets]
        for name, buckets in reading.histograms.items()
    }
    return msgspec.structs.replace(reading, histograms=histograms)


def is_page_recording(path: Path) -> bool:
    """Whether a file begins as one. Pipes are not examined: that would block on the writer."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return KIND.encode() in file.read(128)
    except OSError:
        return False


def read_pages(path: Path) -> Iterator[PageRecord]:
    """The pages of a recording, in order; a torn last line is dropped. Raises `PageError`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PageError(f"{path} has more than {MAX_FILE_BYTES >> 30} GiB")
        with path.open("rb") as file:
            opening = _line(path, file.readline(), Opening)
            if opening.kind != KIND or opening.version != VERSION:
                raise PageError(f"{path} is not a metrics recording of version {VERSION}")
            for line in file:
                if line.endswith(b"\n"):
                    record = _line(path, line, PageRecord)
                    engines = [(a, b, _with_bounds(c, _MOST, float("inf"))) for a, b, c in record.engines]
                    yield msgspec.structs.replace(record, engines=engines)
    except OSError as error:
        raise PageError(f"{path}: {error.strerror}") from None


def _line(path: Path, line: bytes, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise PageError(f"{path}: a line is damaged ({' '.join(str(error).split())[:100]})") from None
