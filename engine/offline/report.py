"""What a run came to: one JSON document, or a page of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import astuple
from schedtop.engine.contract.percentiles import Percentiles
from schedtop.engine.contract.slo import Slo, served
from schedtop.engine.contract.telemetry import MOST_DRAFTS, StepRecord, Totals, draft_positions
from schedtop.engine.contract.workload_notes import as_document
from schedtop.engine.offline.held_back import HeldBack, held_back_lines

if TYPE_CHECKING:
    from schedtop.engine.step.stretch import Stretch

SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class Report:
    """Accumulates step records; figures are since the session's start, as its totals are.

    `drafter` names who drafts, where that is known; `workload` is a header's description of it.
    `wall_s`, `stopped_by` (a signal) and `unrecorded` (its recording is not whole) are for the caller to set; `close`
    says how long the run went on after its last record.
    """

    def __init__(self, slo: Slo | None = None, drafter: str | None = None) -> None:
        self.slo = slo
        self.drafter = drafter
        self.clock_s = 0.0
        self.wall_s: float | None = None
        self.stopped_by: int | None = None
        self.unrecorded = False
        self.totals = Totals()
        self.num_good = 0
        self._served = 0
        self._ttft_s, self._tpot_s, self._e2e_s = Percentiles(), Percentiles(), Percentiles()
        self._itl_s = Percentiles("f")
        self._peak_blocks = 0
        self._pool_blocks = 0
        self.workload: Mapping[str, Any] = {}
        self._held_back = HeldBack()
        self._drafts = np.zeros((2, MOST_DRAFTS), dtype=np.int64)

    def add(self, record: StepRecord | Stretch) -> None:
        """Take in the next record, or many steps at once."""
        self.totals = record.totals
        self.clock_s = record.end_s
        if record.itl_s:
            self._itl_s.add_bytes(record.itl_s)
        for _, ttft_s in record.ttft_s:
            self._ttft_s.add(ttft_s)
        if isinstance(record, StepRecord):
            self._held_back.add(record.arrivals, record.refusals, record.finishes)
        else:
            self._held_back.add((), (), record.finishes)
        if record.finishes:
            self._add_finishes(record)
        if isinstance(record, StepRecord) and record.draft_tokens:
            self._drafts += draft_positions(record)
        blocks = record.blocks
        used = blocks.held + blocks.shared
        if used >= self._peak_blocks:
            self._peak_blocks, self._pool_blocks = used, used + blocks.cached_free + blocks.empty

    def close(self, clock_s: float) -> None:
        """The run went on to `clock_s`, if it did not end later than that."""
        self.clock_s = max(self.clock_s, clock_s)

    def _add_finishes(self, record: StepRecord | Stretch) -> None:
        for finish in record.finishes:
            if not served(finish):
                continue
            self._served += 1
            self.num_good += self.slo is not None and self.slo.met_by(finish)
            if finish.tpot_s is not None:
                self._tpot_s.add(finish.tpot_s)
            if finish.e2e_s is not None:
                self._e2e_s.add(finish.e2e_s)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; what cannot be known is None. `goodput` is there if an SLO was given."""
        totals = self.totals
        document: dict[str, Any] = {
            "requests": {
                "submitted": totals.submitted,
                "finished": totals.finished,
                "refused": totals.refused,
                "aborted": totals.aborted,
            },
            "tokens": {
                "prompt": totals.prompt_tokens,
                "output": totals.output_tokens,
                "scheduled": totals.scheduled_tokens,
                "recomputed": totals.recomputed_tokens,
                "cached": totals.cached_tokens,
            },
            "ttft_s": _summary(self._ttft_s),
            "itl_s": _summary(self._itl_s),
            "tpot_s": _summary(self._tpot_s),
            "e2e_s": _summary(self._e2e_s),
            "preemptions": totals.preemptions,
            "hit_rate": _ratio(totals.cached_tokens, totals.prompt_tokens),
            "steps": totals.steps,
            "budget_use": {
                "tokens": _ratio(totals.scheduled_tokens, totals.token_budget),
                "rows": _ratio(totals.input_rows, totals.input_budget),
            },
            "peak_kv_usage": _ratio(self._peak_blocks, self._pool_blocks),
            "clock_s": self.clock_s,
            "wall_s": self.wall_s,
            **self._held_back.as_document(),
        }
        if self.workload:
            document["workload"] = as_document(self.workload)
        if "client_waits_s" in self.workload:
            waits = Percentiles()
            for wait_s in self.workload["client_waits_s"]:
                waits.add(wait_s)
            document["client_wait_s"] = _summary(waits)
        if totals.draft_tokens:
            document["drafts"] = self._describe_drafts()
        if self.slo is not None:
            document["goodput"] = {
                "slo": str(self.slo),
                "share": _ratio(self.num_good, self._served),
                "per_s": _ratio(self.num_good, self.clock_s),
                "met": self.num_good,
                "n": self._served,
            }
        return document

    def _describe_drafts(self) -> dict[str, Any]:
        verified, rejected = self.totals.draft_tokens, self.totals.rejected_draft_tokens
        drafted, accepted = self._drafts.tolist()
        return {
            "by": self.drafter,
            "verified": verified,
            "accepted": verified - rejected,
            "accepted_share": _ratio(verified - rejected, verified),
            "by_position": [_ratio(held, all) for held, all in zip(accepted, drafted, strict=True) if all],
        }

    def as_text(self) -> str:
        """The document as aligned lines of plain ASCII, without a newline at the end."""
        return report_text(self.as_dict())


def totals_since(before: Totals, totals: Totals) -> Totals:
    """What was counted from `before` on."""
    return Totals(*(new - old for old, new in zip(astuple(before), astuple(totals), strict=True)))


def report_text(document: dict[str, Any]) -> str:
    """A report's document for reading; `n/a` is unknown."""
    budget, clock_s = document["budget_use"], document["clock_s"]
    rate = _ratio(document["tokens"]["output"], clock_s)
    lines = [
        _line("requests", ", ".join(f"{count:,} {name}" for name, count in document["requests"].items())),
        _line("tokens", ", ".join(f"{count:,} {name}" for name, count in document["tokens"].items())),
        _line("throughput", "n/a" if rate is None else f"{rate:,.1f} output tokens/s"),
        _line("", "".join(f"{name:>10}" for name in SHARES) + f"{'n':>13}"),
        *(_latency_line(name, document[f"{name}_s"]) for name in ("ttft", "itl", "tpot", "e2e")),
        _line("preemptions", f"{document['preemptions']:,}"),
        _line("hit rate", f"{percent_text(document['hit_rate'])} of the prompt tokens of first admissions"),
        _line("budget use", f"{percent_text(budget['tokens'])} of tokens, {percent_text(budget['rows'])} of rows"),
        _line("peak KV usage", percent_text(document["peak_kv_usage"])),
        _line("steps", f"{document['steps']:,}"),
        _line(
            "time",
            f"{duration_text(clock_s)} on the engine's clock, {duration_text(document['wall_s'])} of wall time",
        ),
    ]
    if "drafts" in document:
        lines.insert(-1, _line("drafts", drafts_text(document["drafts"])))
    if "goodput" in document:
        good = document["goodput"]
        share = (
            f"{percent_text(good['share'])} ({good['met']:,} of {good['n']:,} finished requests met {good['slo']})"
        )
        lines.insert(8, _line("goodput", share))
    if "client_wait_s" in document:
        lines.insert(8, _latency_line("client wait", document["client_wait_s"]))
    return "\n".join([*lines, *told_lines(document)])


def told_lines(document: dict[str, Any]) -> list[str]:
    """What to know before trusting a report's figures: how its workload was read, what was not served as asked."""
    workload = document.get("workload", {})
    read = [workload["read_as"]] if workload.get("read_as") else []
    told = [*held_back_lines(document), *read, *workload.get("notices", ())]
    return [_line("" if place else "notes", line) for place, line in enumerate(told)]


def drafts_text(drafts: dict[str, Any]) -> str:
    """Who drafted and what held; by position, the first draft first."""
    by = f" by {drafts['by']}" if drafts["by"] else ""
    places = ", ".join(percent_text(share) for share in drafts["by_position"])
    held = f"{percent_text(drafts['accepted_share'])} accepted"
    return f"{drafts['verified']:,} verified{by}, {held}" + (f"; by position {places}" if places else "")


def _summary(values: Percentiles) -> dict[str, float | int | None]:
    return {**{name: values.percentile(share) for name, share in SHARES.items()}, "n": values.count}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _line(name: str, text: str) -> str:
    return f"{name:<15}{text}".rstrip()


def _latency_line(name: str, summary: dict[str, float | int | None]) -> str:
    return _line(
        name.upper(), "".join(f"{duration_text(summary[key]):>10}" for key in SHARES) + f"{summary['n']:>13,}"
    )


def percent_text(share: float | None) -> str:
    """A share as `12.3 %`; `n/a` is unknown."""
    return "n/a" if share is None else f"{100 * share:.1f} %"


def duration_text(seconds: float | None) -> str:
    """A time in ms below a second; `n/a` is unknown."""
    if seconds is None:
        return "n/a"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 99.995 else f"{seconds:,.0f} s"
