"""No progress while requests wait: nothing new is computed, the engine is paused, or it says nothing."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.finding import Advice, CausalLink, Finding, Severity, StepRange, seconds, some
from schedtop.console.explain.window import FactsWindow, Rows, Table, last_run, most_frequent_reason
from schedtop.engine.contract.telemetry import Limiter


def find_none(window: FactsWindow) -> Finding | None:
    """The present state: the newest records show no progress, or there are none."""
    records = window.records
    if not len(records) or not records["running"][-1] + records["waiting"][-1]:
        return None
    return _paused(window) or _silent(window) or _empty(window)


def _paused(window: FactsWindow) -> Finding | None:
    records = window.records
    if not records["paused"][-1] or not records["waiting"][-1]:
        return None
    rows = last_run(records["paused"] > 0)
    span_s = float(records["end_s"][-1] - records["end_s"][rows[0]])
    links = (
        _in_flight(records),
        CausalLink("the engine is paused", {"paused": True, "records": len(rows), "span_s": span_s}),
    )
    remedy = Advice("", "", words="resume the engine; no limit is at fault")
    return _finding(window, Severity.NOTICE, links, remedy, rows, len(rows), "records while paused")


def _silent(window: FactsWindow) -> Finding | None:
    silent_s = window.silent_s
    if silent_s is None or silent_s < catalogue.SILENT.value or window.records["paused"][-1]:
        return None
    usual = f"a step took {seconds(window.step_s)} in the median: " if len(window.steps) else ""
    links = (
        _in_flight(window.records),
        CausalLink(f"no step from the engine for {seconds(silent_s)}", {"silent_s": silent_s}),
        CausalLink(
            f"{usual}it is stuck in the device, or the process is",
            {"step_s": window.step_s if len(window.steps) else None},
        ),
    )
    remedy = Advice("", "", words="look at the engine's process and its device; no limit is at fault")
    return _finding(window, Severity.SEVERE, links, remedy, np.array([len(window.records) - 1]), 1, "last record")


def _empty(window: FactsWindow) -> Finding | None:
    """Steps run, but nothing they compute is new."""
    steps = window.steps
    new = steps["tokens"] - steps["recomputed"]
    rows = last_run((new <= 0) & (steps["waiting"] + steps["running"] > 0))
    if len(rows) < catalogue.MIN_STEPS.value:
        return None
    part = Table(steps.matrix[rows])
    again = part.total("recomputed")
    reason = most_frequent_reason(part)
    held = (CausalLink(f"the head is held by {reason.replace('_', ' ')}", {"reason": reason.value}),)
    links = (
        _in_flight(window.records),
        CausalLink(
            f"{len(rows)} steps computed nothing new: {some(part.total('tokens'), 'token')}, {again:.0f} of them again",
            {"steps": len(rows), "tokens": int(part.total("tokens")), "recomputed_tokens": int(again)},
        ),
        *(held if reason is not Limiter.NONE else ()),
    )
    remedy = window.advise(("max_num_seqs", "down"))[0]
    seqs = np.flatnonzero(np.isin(window.records["seq"], part["seq"]))
    return _finding(window, Severity.SEVERE, links, remedy, seqs, len(rows), "steps")


def _in_flight(records: Table) -> CausalLink:
    running, waiting = int(records["running"][-1]), int(records["waiting"][-1])
    return CausalLink(
        f"{some(waiting, 'request')} in the queue, {running} running",
        {"waiting": waiting, "running": running},
    )


def _finding(
    window: FactsWindow,
    severity: Severity,
    links: tuple[CausalLink, ...],
    advice: Advice,
    rows: Rows,
    n: int,
    what: str,
) -> Finding:
    part = Table(window.records.matrix[rows])
    span = StepRange(int(part["seq"][0]), int(part["seq"][-1]), int(part["step"][0]), int(part["step"][-1]))
    title = catalogue.BY_ID["no-progress"].title
    return Finding("no-progress", title, severity, links, (span,), (advice,), n, what)
