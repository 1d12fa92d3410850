"""Records metrics pages and replays them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from schedtop.console.cli.errors import CommandError
from schedtop.console.cli.fleet import PageMember, PageRows, merged_pages
from schedtop.console.fleet.rows import FleetRow, summed
from schedtop.engine.scrape.recorded import PageWriter, read_pages


def record_pages(addresses: list[str], path: str, until: Callable[[], bool]) -> str:
    """Record the pages at `addresses` until `until` says so; what became of it, in one line. Raises `OSError`."""
    members = [PageMember(address) for address in addresses]
    writer, lock = PageWriter(path), threading.Lock()

    def page(*parts: object) -> None:
        with lock:
            writer.page(*parts)  # type: ignore[arg-type]

    for member in members:
        member.on_page = page
        member.start()
    while not until():
        time.sleep(0.1)
    for member in members:
        member.on_page = lambda *_: None
        member.close()
    with lock:
        writer.close()
    return f"{path}: {writer.num_pages} pages of {', '.join(member.name for member in members)}"


class RecordedPages:
    """A recording's pages up to a moment, as a fleet. Raises `PageError`; `CommandError` where there are none."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._pages = list(read_pages(path))
        if not self._pages:
            raise CommandError(f"{path} holds no page: there is nothing to replay")
        self._times = [page.at_s for page in self._pages]
        self._now, self._began_s = now, now()
        self._from_s, self.playing = self._times[0], True
        self._rows: dict[str, PageRows] = {}
        self._taken = 0
        self.look()

    @property
    def at_s(self) -> float:
        """The moment shown, Unix seconds."""
        passed_s = self._now() - self._began_s if self.playing else 0.0
        return min(self._from_s + passed_s, self._times[-1])

    def move(self, seconds: float) -> None:
        """Go so far on or back."""
        self._from_s = max(self._times[0], min(self.at_s + seconds, self._times[-1]))
        self._began_s = self._now()

    def toggle(self) -> None:
        """Play or pause."""
        self._from_s, self._began_s = self.at_s, self._now()
        self.playing = not self.playing

    def look(self) -> None:
        """Take in the pages up to the moment shown; all again after a step back."""
        stop = bisect_right(self._times, self.at_s)
        if stop < self._taken:
            self._rows, self._taken = {}, 0
        for page in self._pages[self._taken : stop]:
            rows = self._rows.setdefault(page.server, PageRows(page.server))
            if page.error:
                rows.state = page.error
            else:
                rows.take(page.at_s, page.readings())
        self._taken = stop

    def rows(self, window_s: float) -> list[FleetRow]:
        self.look()
        return [row for member in self._rows.values() for row in member.rows(window_s)]

    def total(self, window_s: float) -> FleetRow | None:
        pages = list(self._rows.values())
        latencies = (merged_pages(pages, kind, window_s) for kind in ("ttft", "itl"))
        return summed(self.rows(window_s), *latencies)

    def notes(self) -> list[str]:
        passed_s, whole_s = self.at_s - self._times[0], self._times[-1] - self._times[0]
        state = "playing" if self.playing else "standing still"
        return [f"recorded pages: {passed_s:.0f} of {whole_s:.0f} s, {state}; Space plays, ← and → go 10 s"]
