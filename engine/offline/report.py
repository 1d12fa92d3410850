"""The outcome of a run as one JSON document. `report_text` is the same for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from schedtop.engine.contract.kv_groups import has_windows
from schedtop.engine.contract.latencies.cohort import SHARES, Cohort
from schedtop.engine.contract.latencies.families import Families, RequestFamily
from schedtop.engine.contract.latencies.front_end import FrontEnd, front_end_of
from schedtop.engine.contract.latencies.lives import Lives
from schedtop.engine.contract.latencies.percentiles import Percentiles
from schedtop.engine.contract.latencies.slo import Slo, served
from schedtop.engine.contract.prefixes.lost_hits import PrefixMemory
from schedtop.engine.contract.reading import blocks_in_use, draft_positions, hit_rate, totals_since
from schedtop.engine.contract.telemetry import MOST_DRAFTS, Header, Snapshot, StepRecord, Totals
from schedtop.engine.contract.workload_notes import as_document
from schedtop.engine.offline.client_latencies import ClientLatencies
from schedtop.engine.offline.refused_or_cut import HeldBack
from schedtop.engine.offline.report_text import duration_text, percent_text, report_text
from schedtop.engine.offline.request_classes import Classes

if TYPE_CHECKING:
    from schedtop.engine.step.stretch.stretch import Requests, Stretch

__all__ = ["SHARES", "Report", "duration_text", "percent_text", "report_text"]


LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


class Report:
    """Accumulates step records; figures are since the session's start, as its totals are.

    Latencies are those of a cohort (`engine.contract.cohort`): requests still waiting at the end count. `drafter`
    names the drafter where known; `workload` is a header's description of it; `block_size` is needed for lost
    hits, `windows` says that some layers forget; `front_end` is what a client's latencies add to the
    scheduler's, where that is simulated; `own_model_len` says what raises a limit. `wall_s`, `stopped_by` (a signal)
    and `unrecorded` (its recording is not whole) are for the caller to set; `close` says how long the run went on after
    its last record.
    """

    def __init__(
        self,
        slo: Slo | None = None,
        drafter: str | None = None,
        block_size: int | None = None,
        front_end: FrontEnd | None = None,
        windows: bool = False,
        own_model_len: int | None = None,
    ) -> None:
        self.slo = slo
        self.drafter = drafter
        self.clock_s = 0.0
        self.wall_s: float | None = None
        self.stopped_by: int | None = None
        self.unrecorded = False
        self.totals = Totals()
        self.num_good = 0
        self._served = 0
        self._running = self._waiting = 0
        self._lives = Lives(keep_gaps=slo is not None and slo.itl_s is not None)
        self._classes = Classes()
        self._adapters = Classes(lambda arrival: arrival.adapter_label or None)
        self._askers = Classes(lambda arrival: arrival.client or None)
        self._families = Families(self._add_family)
        self._num_families = self._num_children = 0
        self._family_e2e_s = Percentiles()
        self._prefixes = None if block_size is None else PrefixMemory(block_size, windows)
        self._ttft_s, self._tpot_s, self._e2e_s = Percentiles(), Percentiles(), Percentiles()
        self._itl_s = Percentiles("f")
        self._clients = ClientLatencies(front_end)
        self._peak_blocks = 0
        self._pool_blocks = 0
        self._peak_host_blocks = self._host_blocks = 0
        self._encoder_tokens = 0
        self.workload: Mapping[str, Any] = {}
        self._held_back = HeldBack(own_model_len)
        self._drafts = np.zeros((2, MOST_DRAFTS), dtype=np.int64)

    @classmethod
    def of(cls, header: Header, slo: Slo | None) -> Report:
        """A report on the engine of a header."""
        settings, config = header.settings, header.config
        report = cls(
            slo,
            settings.get("drafts"),
            header.block_size,
            front_end_of(settings),
            has_windows(config),
            config.get("own_model_len"),
        )
        report.workload = header.workload
        return report

    def begin(self, snapshot: Snapshot) -> None:
        """For a recording that starts mid-session: `snapshot` is the state before the first record."""
        self.totals, self.clock_s = snapshot.totals, snapshot.clock_s
        self._lives.begin(snapshot)
        self._clients.begin(snapshot)
        self._classes.begin(snapshot)
        self._adapters.begin(snapshot)
        self._askers.begin(snapshot)
        self._families.begin(snapshot)
        self._running, self._waiting = len(snapshot.running), len(snapshot.waiting)

    def add(self, record: StepRecord | Stretch) -> None:
        """Take in the next record, or many steps at once."""
        self.totals = record.totals
        self.clock_s = record.end_s
        self._running, self._waiting = record.running, record.waiting
        if isinstance(record, StepRecord):
            self._itl_s.add_bytes(record.itl_s)
            self._add_requests(record)
            self._add_step(record)
        else:
            for requests in record.requests():
                self._add_requests(requests)
            self._add_stretch(record)
        blocks = record.blocks
        used = blocks_in_use(record) if isinstance(record, StepRecord) else record.blocks_in_use
        if used >= self._peak_blocks:
            self._peak_blocks = used
            self._pool_blocks = blocks.held + blocks.shared + blocks.cached_free + blocks.empty

    def _add_requests(self, record: StepRecord | Requests) -> None:
        """Count arrivals, admissions and ends."""
        for _, ttft_s in record.ttft_s:
            self._ttft_s.add(ttft_s)
        self._held_back.add(record)
        self._clients.add(record)
        if record.finishes:
            self._add_finishes(record)
        if record.arrivals or record.ttft_s or record.admissions:
            self._classes.add(record, self._lives)
            self._adapters.add(record, self._lives)
            self._askers.add(record, self._lives)
        if self._prefixes is not None:
            self._prefixes.add(record)
        self._families.add(record)
        self._lives.move(record)

    def _add_step(self, record: StepRecord) -> None:
        self._encoder_tokens += record.encoder_tokens
        if record.host_blocks:
            self._peak_host_blocks = max(self._peak_host_blocks, record.host_blocks[0])
            self._host_blocks = record.host_blocks[1]
        if record.draft_tokens:
            self._drafts += draft_positions(record)
        self._lives.deliver_rows(record)

    def _add_stretch(self, stretch: Stretch) -> None:
        """Take in steps in which each row got one output."""
        for leg in stretch.legs:
            self._itl_s.add_bytes(leg.gaps_s.tobytes())
            if self.slo is not None and self.slo.itl_s is not None:
                self._lives.keep(leg.told_numbers(), leg.gaps_s.ravel())
        for delivered, end_s in stretch.delivered:
            self._lives.deliver(delivered, end_s)

    def close(self, clock_s: float) -> None:
        """The run lasted at least until `clock_s`."""
        self.clock_s = max(self.clock_s, clock_s)

    def _add_finishes(self, record: StepRecord | Requests) -> None:
        for finish in record.finishes:
            if not served(finish):
                continue
            self._served += 1
            self.num_good += self.slo is not None and self.slo.met_by(finish)
            if finish.tpot_s is not None:
                self._tpot_s.add(finish.tpot_s)
            if finish.e2e_s is not None:
                self._e2e_s.add(finish.e2e_s)

    def _add_family(self, family: RequestFamily) -> None:
        self._num_families += 1
        self._num_children += family.children
        if family.last_s is not None:
            self._family_e2e_s.add(family.last_s - family.first_s)

    def _describe_families(self) -> dict[str, Any]:
        """To the client, the children of a parent are one request, which ends with the last of them."""
        unended = [max(0.0, self.clock_s - family.first_s) for family in self._families.open.values()]
        return {
            "ended": self._num_families,
            "open": len(unended),
            "children": self._num_children + sum(family.children for family in self._families.open.values()),
            "e2e_s": self._family_e2e_s.cohort(unended).document(),
        }

    def as_dict(self, since: Totals | None = None, start_s: float = 0.0) -> dict[str, Any]:
        """Plain JSON values; None where unknown. `goodput` is present if an SLO was given.

        `since` and `start_s`: totals are what was counted after these, and the time is from then on.
        """
        totals = self.totals if since is None else totals_since(since, self.totals)
        clock_s = self.clock_s - start_s
        cohorts = self.cohorts()
        document: dict[str, Any] = {
            "requests": {
                "submitted": totals.submitted,
                "finished": totals.finished,
                "kv_capacity": totals.kv_capacity,
                "refused": totals.refused,
                "aborted": totals.aborted,
                "failed": totals.failed,
                "running": self._running,
                "waiting": self._waiting,
                "by_class": self._classes.document(self._lives, self.clock_s),
            },
            "tokens": {
                "prompt": totals.prompt_tokens,
                "output": totals.output_tokens,
                "scheduled": totals.scheduled_tokens,
                "recomputed": totals.recomputed_tokens,
                "cached": totals.cached_tokens,
                "aborted_prefill": totals.aborted_prefill_tokens,
            },
            **{name: found.document() for name, found in cohorts.items()},
            **self._clients.document(cohorts),
            "preemptions": totals.preemptions,
            "hit_rate": hit_rate(totals),
            "steps": totals.steps,
            "budget_use": {
                "tokens": _ratio(totals.scheduled_tokens, totals.token_budget),
                "rows": _ratio(totals.input_rows, totals.input_budget),
            },
            "peak_kv_usage": _ratio(self._peak_blocks, self._pool_blocks),
            "clock_s": clock_s,
            "wall_s": self.wall_s,
            **self._held_back.as_document(),
        }
        if self._encoder_tokens:
            document["tokens"]["encoder"] = self._encoder_tokens
        if self._host_blocks:
            document["hits_by_tier"] = {
                "pool": _ratio(totals.cached_tokens - totals.external_tokens, totals.cache_queries),
                "host": _ratio(totals.external_tokens, totals.cache_queries),
            }
            document["peak_host_usage"] = _ratio(self._peak_host_blocks, self._host_blocks)
        if adapters := self._adapters.document(self._lives, self.clock_s):
            document["requests"]["by_adapter"] = adapters
        if askers := self._askers.document(self._lives, self.clock_s):
            document["requests"]["by_client"] = askers
        if self._num_families or self._families.open:
            document["requests"]["parents"] = self._describe_families()
        if self.workload:
            document["workload"] = as_document(self.workload)
        if "client_waits_s" in self.workload:
            document["client_wait_s"] = _summary(self.workload["client_waits_s"])
        if self._prefixes is not None and (found := self._prefixes.found).prompt_tokens:
            document["lost_hits"] = {
                "tokens": found.lost_tokens,
                "share": found.lost_share,
                "unbounded_hit_rate": found.unbounded_hit_rate,
            }
        if totals.draft_tokens:
            document["drafts"] = self._describe_drafts(totals)
        if self.slo is not None:
            document["goodput"] = self._judge(self.slo, clock_s)
        return document

    @property
    def num_open(self) -> int:
        """Requests that are in flight."""
        return len(self._lives.of)

    def cohorts(self) -> dict[str, Cohort]:
        """Each latency's cohort, by its name in the document."""
        unended = self._lives.unended(self.clock_s)
        return {
            "ttft_s": self._ttft_s.cohort(unended.ttft_s),
            "itl_s": self._itl_s.cohort(unended.itl_s),
            "tpot_s": self._tpot_s.cohort(unended.tpot_s),
            "e2e_s": self._e2e_s.cohort(unended.e2e_s),
        }

    def _judge(self, slo: Slo, clock_s: float) -> dict[str, Any]:
        """Requests known to be within every bound, among those known to be within or past one."""
        past_open = self._lives.num_past(slo, self.clock_s)
        judged = self._served + past_open
        return {
            "slo": str(slo),
            "share": _ratio(self.num_good, judged),
            "per_s": _ratio(self.num_good, clock_s),
            "met": self.num_good,
            "n": judged,
            "past_open": past_open,
            "open": self.num_open - past_open,
        }

    def _describe_drafts(self, totals: Totals) -> dict[str, Any]:
        verified = totals.draft_tokens
        # A recording from before agreed drafts were counted has those that became outputs.
        accepted = max(totals.accepted_draft_tokens, verified - totals.rejected_draft_tokens)
        drafted, agreed = self._drafts.tolist()
        return {
            "by": self.drafter,
            "drafts": totals.drafts,
            "verified": verified,
            "accepted": accepted,
            "accepted_share": _ratio(accepted, verified),
            "mean_length": 1 + accepted / totals.drafts if totals.drafts else None,
            "by_position": [_ratio(held, all) for held, all in zip(agreed, drafted, strict=True) if all],
        }

    def as_text(self) -> str:
        """The document as aligned lines of plain ASCII, without a newline at the end."""
        return report_text(self.as_dict())


def _summary(values_s: Sequence[float]) -> dict[str, Any]:
    """The same for a latency without open values."""
    values = Percentiles()
    for value_s in values_s:
        values.add(value_s)
    return values.cohort().document()


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
