"""Inverted priority: the urgent waits while the less urgent runs."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import table
from schedtop.console.explain.finding import Advice, Finding, Link, Severity, percent, seconds
from schedtop.console.explain.ttft import cap_knob
from schedtop.console.explain.window import Rows, Table, Window
from schedtop.engine.telemetry import Limiter


def find_inverted(window: Window) -> Finding | None:
    """Heads marked inverted, many steps in a row."""
    steps = window.steps
    if not len(steps):
        return None
    inverted = steps["inverted"] > 0
    runs = _runs(np.flatnonzero(inverted))
    longest = max(runs, key=len, default=np.arange(0))
    if len(longest) < table.INVERTED_STEPS.value:
        return None
    part = Table(steps.matrix[longest])
    codes, counts = np.unique(part["limiter"], return_counts=True)
    reason = list(Limiter)[int(codes[np.argmax(counts)])]
    head, span_s = int(part["head"][-1]), float(part["end_s"][-1] - part["start_s"][0])
    links = (
        Link(_urgent(window, head, part), {"number": head, "steps": len(longest), "span_s": span_s}),
        Link(
            f"less urgent requests run meanwhile: urgent heads waited in {len(longest)} steps in a row"
            f" ({seconds(span_s)}), and in {percent(float(inverted.mean()))} of all steps",
            {"inverted_share": float(inverted.mean())},
        ),
        Link(
            f"it is held by {reason.replace('_', ' ')}: priority orders the queue and picks victims,"
            " it takes no place from those who run",
            {"reason": reason.value, "running": part.mean("running")},
        ),
    )
    return Finding(
        "inverted-priority",
        table.BY_ID["inverted-priority"].title,
        Severity.WARNING,
        links,
        window.spans(inverted, lambda told: f"head {window.name(told['head'][0])}"),
        _advice(window, reason),
        int(inverted.sum()),
        "steps",
    )


def _urgent(window: Window, head: int, part: Table) -> str:
    known = window.facts.known.get(head)
    if known is None:
        return f"{len(np.unique(part['head']))} urgent requests waited at the head of the queue, the last #{head}"
    waited_s = max(float(part["end_s"][-1]) - known.queued_s, 0.0)
    urgency = f"priority {known.arrival.priority}, lower is more urgent"
    return f"{known.name} ({urgency}) has waited {seconds(waited_s)}"


def _runs(rows: Rows) -> list[Rows]:
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []


def _advice(window: Window, reason: Limiter) -> tuple[Advice, ...]:
    match reason:
        case Limiter.SEQUENCE_CAP:
            return window.advise((cap_knob(window), "up"))
        case Limiter.WATERMARK:
            return window.advise(("watermark", "down"))
        case Limiter.FULL_SEQUENCE:
            return window.advise(("scheduler_reserve_full_isl", "off"), ("num_blocks", "up"))
        case Limiter.TOKEN_BUDGET | Limiter.INPUT_BUDGET:
            return window.advise(("max_num_batched_tokens", "up"), ("long_prefill_token_threshold", "down"))
    return window.advise(("num_blocks", "up"))
