"""What is known of one request's life: its steps, its slow gaps and their causes. No drawing here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from schedtop.console.life.phases import PhaseSpan, totals
from schedtop.console.past.state import Tracked
from schedtop.engine.contract.latencies.front_end import FrontEnd
from schedtop.engine.contract.telemetry import Arrival, Finish, Preemption, StepRecord


class Visit(NamedTuple):
    """One step the request was running in. `gap_s` is the time since its previous delivery, None if it has none.

    `phase` is one of `phases.PHASES`; `flags` are `RowFlag` bits.
    """

    seq: int
    step: int
    start_s: float
    end_s: float
    phase: str
    tokens: int
    drafts: int
    accepted: int
    computed: int
    needed: int
    emitted: int
    blocks: int
    flags: int
    gap_s: float | None
    batch_tokens: int
    budget: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Blame:
    """A slow gap and what made it long, or a step in which this request made others wait."""

    seq: int
    step: int
    seconds: float
    words: str
    caused: bool = False


@dataclass(slots=True)
class RequestLife:
    """What is known of a request up to a moment, in `step`. Times are on the engine's clock; None is not (yet) known.

    `spans` reach from its arrival to `until_s`: the moment, or its last token. `lost` holds its own preemptions,
    `took` those made to give it room. `blocks` are those it holds, `full_blocks` of them full attention where
    other layers forget, `sharers` who else holds them, as (number, blocks). `front_end` is a simulated one.
    """

    number: int
    arrival: Arrival
    tracked: Tracked | None = None
    finish: Finish | None = None
    until_s: float = 0.0
    visits: list[Visit] = field(default_factory=list)
    spans: list[PhaseSpan] = field(default_factory=list)
    lost: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    took: list[tuple[StepRecord, Preemption]] = field(default_factory=list)
    blames: list[Blame] = field(default_factory=list)
    slow_s: float = math.inf
    front_end: FrontEnd | None = None
    step: int = 0
    outputs: int = 0
    last_token_s: float | None = None
    again_tokens: int = 0
    blocks: int = 0
    full_blocks: int | None = None
    sharers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """False where no record says what it did for a while."""
        return not any(span.phase == "unknown" for span in self.spans)

    @property
    def length_s(self) -> float:
        return max(0.0, self.until_s - self.arrival.arrival_s)

    @property
    def queue_s(self) -> float | None:
        if self.finish is not None:
            return self.finish.queue_s
        if self.tracked is None or self.tracked.first_scheduled_s is None:
            return None
        return self.tracked.first_scheduled_s - self.arrival.arrival_s

    @property
    def ttft_s(self) -> float | None:
        if self.finish is not None:
            return self.finish.ttft_s
        return self.tracked.ttft_s if self.tracked is not None else None

    @property
    def client_ttft_s(self) -> float | None:
        """TTFT with the time outside the scheduler, where that is reported or simulated."""
        return self._at_client(self.ttft_s)

    @property
    def client_e2e_s(self) -> float | None:
        """E2E with the time outside the scheduler."""
        return self._at_client(None if self.finish is None else self.finish.e2e_s)

    def _at_client(self, latency_s: float | None) -> float | None:
        """None where neither is known, or the step that gave the token is not kept."""
        if latency_s is None:
            return None
        if self.arrival.client_wait_s is not None:
            return latency_s + self.arrival.client_wait_s
        end_s = self.arrival.arrival_s + latency_s
        visit = next((visit for visit in self.visits if visit.emitted and abs(visit.end_s - end_s) < 1e-6), None)
        if visit is None or self.front_end is None:
            return None
        return latency_s + self.front_end.wait_s(visit.batch_rows, self.arrival.prompt_tokens)

    @property
    def tpot_s(self) -> float | None:
        """As of its last token."""
        if self.finish is not None:
            return self.finish.tpot_s
        ttft_s, last_s = self.ttft_s, self.last_token_s
        if ttft_s is None or last_s is None or self.outputs < 2:
            return None
        return (last_s - self.arrival.arrival_s - ttft_s) / (self.outputs - 1)

    @property
    def preemptions(self) -> int:
        if self.finish is not None:
            return self.finish.preemptions
        return self.tracked.preemptions if self.tracked is not None else 0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed again; of a live request, as far as its steps are kept."""
        return self.finish.recomputed_tokens if self.finish is not None else self.again_tokens

    @property
    def open_gap_s(self) -> float | None:
        """Since when a live request that had its first token got no other; None before that."""
        if self.finish is not None or self.last_token_s is None:
            return None
        return self.until_s - self.last_token_s

    @property
    def open_is_slow(self) -> bool:
        return (self.open_gap_s or 0.0) > self.slow_s

    @property
    def slow_gaps(self) -> list[Visit]:
        """The steps that ended a slow gap."""
        return [visit for visit in self.visits if visit.gap_s is not None and visit.gap_s > self.slow_s]

    def split(self) -> dict[str, float]:
        """Seconds of each phase, which add up to the life's length."""
        return totals(self.spans)
