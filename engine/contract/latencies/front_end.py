"""A simulated front end: what it adds to the scheduler's latencies for a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from schedtop.engine.contract.telemetry import ROW_FIELDS, StepRecord


class FrontEnd(NamedTuple):
    """Seconds: `fixed_s` for every request, `row_s` for each row of the step that gave the token (on its way back), and
    `token_s` for each token of the prompt."""

    fixed_s: float
    row_s: float = 0.0
    token_s: float = 0.0

    def wait_s(self, num_rows: int, prompt_tokens: int) -> float:
        """A client's time outside the scheduler."""
        return self.fixed_s + num_rows * self.row_s + prompt_tokens * self.token_s

    def settings(self) -> dict[str, float]:
        """As a header's settings describe it."""
        return dict(zip(_SETTINGS, self, strict=True))


_SETTINGS = ("front_end_s", "front_end_row_s", "front_end_token_s")


def front_end_of(settings: Mapping[str, Any]) -> FrontEnd | None:
    """The front end that a header's settings describe; None where it is not simulated."""
    if settings.get("front_end_s") is None:
        return None
    return FrontEnd(*(settings.get(name, 0.0) for name in _SETTINGS))


def num_rows(record: StepRecord) -> int:
    """Rows of a record."""
    return len(record.rows) // (4 * len(ROW_FIELDS))
