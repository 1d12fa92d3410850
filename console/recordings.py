"""W: a recording of the engine's last minutes and of what follows, begun and ended from the console."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Protocol

from schedtop.console.drawing import text
from schedtop.console.view import View


class Recorder(Protocol):
    """Writes one recording at a time, outside this process."""

    def start(self, path: Path) -> None:
        """Begin the file. Raises `OSError`."""
        ...

    def ended(self) -> str | None:
        """How a recording ended of itself, in one line; None while it continues."""
        ...

    def stop(self) -> str:
        """End the recording once all is written; what became of it, in one line. May take seconds."""
        ...


class Recordings:
    """Starts and ends recordings; `say` informs the operator. `view.recording` names the file meanwhile."""

    def __init__(self, recorder: Recorder | None, view: View, say: Callable[[str, str], None]) -> None:
        self._recorder, self._view, self._say = recorder, view, say
        self._ending = False

    @property
    def why_not(self) -> str | None:
        """Why nothing can be started or ended now; None if it can."""
        if self._recorder is None:
            return "this console cannot record"
        if self._ending:
            return "the last recording is still being written"
        if not self._view.recording and self._view.link.state != "open":
            return "not connected to an engine"
        return None

    async def toggle(self, folder: Path) -> None:
        """End the recording, or begin one in `folder`."""
        recorder, view = self._recorder, self._view
        assert recorder is not None
        if view.recording:
            self._ending = True
            words = await asyncio.to_thread(recorder.stop)
            self._ending, view.recording = False, ""
            self._say(f"recorded {words}", "ok")
            return
        path = _new_name(folder)
        view.recording = str(path)
        try:
            await asyncio.to_thread(recorder.start, path)
        except OSError as error:
            view.recording = ""
            self._say(f"cannot record: {error.strerror or error}", "breach")
            return
        self._say(f"recording into {path.name}, the last minutes included; W ends it", "ok")

    def look(self) -> None:
        """Tell of a recording that ended of itself."""
        if self._recorder is None or not self._view.recording or self._ending:
            return
        if (words := self._recorder.ended()) is not None:
            self._view.recording = ""
            self._say(f"recording ended: {text.clean(words)}", "warn")


def _new_name(folder: Path) -> Path:
    """A name of this second that is not taken."""
    stem = time.strftime("schedtop-%Y%m%d-%H%M%S")
    names = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    return next(path for name in names if not (path := folder / f"{name}.schedtop").exists())
