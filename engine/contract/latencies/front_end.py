"""A simulated front end: what its clients' latencies have on top of the scheduler's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from schedtop.engine.contract.telemetry import ROW_FIELDS, StepRecord


class FrontEnd(NamedTuple):
    """`fixed_s` for every token on its way to a client, and `row_s` for each row of its step."""

    fixed_s: float
    row_s: float = 0.0

    def wait_s(self, num_rows: int) -> float:
        """A client's time outside the scheduler for a token of a step of so many rows."""
        return self.fixed_s + num_rows * self.row_s


def front_end_of(settings: Mapping[str, Any]) -> FrontEnd | None:
    """The front end that a header's settings describe; None where it is not simulated."""
    fixed_s = settings.get("front_end_s")
    return None if fixed_s is None else FrontEnd(fixed_s, settings.get("front_end_row_s", 0.0))


def num_rows(record: StepRecord) -> int:
    """Rows of a record."""
    return len(record.rows) // (4 * len(ROW_FIELDS))
