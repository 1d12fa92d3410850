"""The runs of a sweep in a file: one line of JSON each, so that a killed sweep loses no finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.files.output_files import named


class SweepRun(msgspec.Struct, frozen=True):
    """A run's report document, or why there is none. `key` is a digest of all that decides it."""

    key: str
    changes: dict[str, Any]
    report: dict[str, Any] | None = None
    error: str | None = None


class Results:
    """Outcomes by key, in memory and, if `path` is given, in its file.

    A last line cut short is dropped: its run is missing then. Raises `ConfigError` for a file of another kind.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.outcomes: dict[str, SweepRun] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        decoder = msgspec.json.Decoder(SweepRun)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                outcome = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise ConfigError(f"{path}:{number}: not a result of a sweep: name another file") from None
            self.outcomes[outcome.key] = outcome
        if whole < len(content):
            if not whole and not content.startswith(b'{"key":'):
                raise ConfigError(f"{path}: not a file of results: name another file")
            with path.open("r+b") as file:
                file.truncate(whole)

    def add(self, outcome: SweepRun) -> None:
        """Save an outcome; it is on disk when this returns."""
        line = msgspec.json.encode(outcome)
        # As a reader would see it, so that an unbroken sweep and a resumed one are the same.
        self.outcomes[outcome.key] = msgspec.json.decode(line, type=SweepRun)
        if self.path is not None:
            with named(self.path), self.path.open("ab") as file:
                file.write(line + b"\n")
