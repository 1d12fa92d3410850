"""Shared by the commands on recordings: opening one, reporting damage once, and a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedtop.console.cli.errors import CommandError, say
from schedtop.engine.recording.frames import RecordingError

if TYPE_CHECKING:
    from schedtop.engine.recording.reader import Recording

OnProgress = Callable[[int], None]

_BAR_EVERY_S = 0.1


@contextmanager
def opened(path: Path, check: bool | None = True, *, read_on: bool = True) -> Iterator[Recording]:
    """The recording at `path`, or of the crashed engine whose folder it is; one line on stderr if it is not whole.

    `check` forces (or forbids) that all of the file is checked first; without `read_on` damage ends it. Raises
    `RecordingError`, `CommandError` for a file of another kind.
    """
    from schedtop.engine.recording.reader import Recording

    if path.is_dir():
        from schedtop.console.cli.flights import as_recording, is_flight

        path = as_recording(path) if is_flight(path) else path
    with expected(path, "a recording", RecordingError):
        recording = Recording(path, check=check, read_on=read_on)
    with recording:
        if recording.truncated:
            say(f"{recording.path}: {recording.truncated}")
        yield recording


@contextmanager
def expected(path: Path, wanted: str, refusal: type[Exception]) -> Iterator[None]:
    """A `refusal` of a file that is not a `wanted` becomes a `CommandError`: what it is, and which command reads it."""
    try:
        yield
    except refusal:
        from schedtop.engine.inspect.kind import kind_of

        kind = kind_of(path)
        if kind is None or kind.name == wanted:
            raise
        raise CommandError(f"{path} is {kind.name}, not {wanted}: {kind.use}") from None


@contextmanager
def progress(what: str, total: int, shown: bool | None = None) -> Iterator[OnProgress]:
    """A bar over `total` records on a terminal's stderr; elsewhere nothing."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda index: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar: Any = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    next_s = 0.0

    def show_progress(index: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _BAR_EVERY_S
            bar.update(task, completed=index)

    with bar:
        yield show_progress
