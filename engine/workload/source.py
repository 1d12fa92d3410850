"""The one interface between the engine and where its requests come from."""

from __future__ import annotations

from typing import Any, Protocol

from schedtop.engine.handoff.request import Request


class RequestSource(Protocol):
    """Requests in order of arrival. Deterministic for a seed, whatever the pace of the calls."""

    description: dict[str, Any]
    """Plain JSON values for the session header: name, seed, rate, limits, and what a trace reader noticed."""

    def take(self, clock_s: float, step: int) -> list[Request]:
        """Every request that has arrived by `clock_s` (or by `step`, for step-driven cases), in order.

        Raises `TraceError` where a trace turns out bad further on; the source is then at its end.
        """
        ...

    def next_arrival_s(self) -> float | None:
        """When the next request arrives; infinity while the rate is 0; None when there are no more."""
        ...

    def set_rate(self, rate: float | None, clock_s: float) -> None:
        """Change the arrival rate (requests/s) from `clock_s` on; None returns to the source's own rate."""
        ...
