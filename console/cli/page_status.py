"""The state of a vLLM or SGLang server from its metrics page, as plain text; an engine's steps say more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from schedtop.console.cli.errors import INTERRUPTED, CommandError
from schedtop.console.cli.fleet import PageMember
from schedtop.console.cli.output import show
from schedtop.console.drawing import text
from schedtop.console.fleet.rows import NA, FleetRow

WINDOW_S = 60.0


class PageStatus:
    """Reads the page at an address. Raises `CommandError` where there is none."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._member = PageMember(address)
        self.look()

    def look(self) -> None:
        """Fetch the page: rates and percentiles are those of what was added since the first time."""
        if not self._member.fetch_once():
            raise CommandError(f"{self.address}: {self._member.state}")

    def rows(self) -> list[FleetRow]:
        return self._member.rows(WINDOW_S)

    def page(self) -> Iterator[str]:
        for row in self.rows():
            yield f"server: {row.name}"
            yield from (f"{name}: {words}" for name, words in _figures(row))
        yield "steps, queue, blocks and limits are not on a metrics page (docs/vllm.md)"

    def document(self) -> dict[str, Any]:
        kept = [asdict(row) for row in self.rows()]
        for row in kept:
            del row["address"], row["state"]
            row |= {kind: dict(zip(("p50", "p95"), row[kind], strict=True)) for kind in ("ttft", "itl")}
        return {"address": self.address, "engines": kept}

    def follow(self) -> int:
        """Print a line a second and engine until the page is gone; the exit code."""
        try:
            while True:
                time.sleep(1.0)
                self.look()
                for row in self.rows():
                    show(f"{row.name}: {', '.join(f'{name} {words}' for name, words in _figures(row))}")
        except KeyboardInterrupt:
            return INTERRUPTED


def _figures(row: FleetRow) -> Iterator[tuple[str, str]]:
    running, waiting = (NA if many is None else f"{many:g}" for many in (row.running, row.waiting))
    yield "requests", f"{running} running, {waiting} waiting"
    yield "KV", NA if row.kv_usage is None else f"{row.kv_usage:.0%}"
    outputs, prompts = text.rate(row.output_per_s), text.rate(row.prompt_per_s)
    yield "rates", f"{outputs} output tokens/s, {prompts} prompt tokens/s"
    yield "TTFT", "p50 {} p95 {}".format(*row.ttft)
    yield "ITL", "p50 {} p95 {}".format(*row.itl)
    yield "preemptions", NA if row.preemptions is None else f"{row.preemptions:g}"
