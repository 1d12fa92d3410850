"""Adapter slots: a step can compute requests of at most `max_loras` adapters together."""

from __future__ import annotations

from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.books.queues import AdapterLines
from schedtop.engine.scheduler.books.state import SchedulerState


class AdapterSlots:
    """The adapters of the step so far: those of scheduled running requests, then those of admitted ones."""

    def __init__(self, state: SchedulerState, lines: AdapterLines) -> None:
        self.lines = lines
        self.max_loras = state.config.max_loras
        table = state.table
        scheduled = table.tokens[: table.size].nonzero()[0].tolist()
        self.used = {table.requests[row].adapter for row in scheduled} - {0}

    def is_shut(self, request: Request) -> bool:
        """Whether the request's adapter does not fit."""
        adapter = request.adapter
        return bool(adapter) and adapter not in self.used and len(self.used) >= self.max_loras

    def pass_over(self, request: Request) -> bool:
        """Whether the request's adapter does not fit; if so, none of its requests is a head in this step."""
        if not self.is_shut(request):
            return False
        self.lines.closed.add(request.adapter)
        return True

    def add(self, request: Request) -> None:
        if request.adapter:
            self.used.add(request.adapter)


def open_slots(state: SchedulerState) -> AdapterSlots | None:
    """None where adapters are not limited."""
    lines = state.waiting.ready
    if not isinstance(lines, AdapterLines):
        return None
    lines.closed.clear()
    return AdapterSlots(state, lines)
