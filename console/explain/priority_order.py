"""Inverted priority: the urgent waits while the less urgent runs."""

from __future__ import annotations

import numpy as np
from schedtop.console.explain import catalogue
from schedtop.console.explain.finding import CausalLink, Finding, Severity, percent, seconds, some
from schedtop.console.explain.remedy import remedy
from schedtop.console.explain.window import FactsWindow, Table, most_frequent_reason, runs


def find_inverted(window: FactsWindow) -> Finding | None:
    """Heads marked inverted, many steps in a row."""
    steps = window.steps
    inverted = steps["inverted"] > 0
    longest = max(runs(inverted), key=len, default=np.arange(0))
    if len(longest) < catalogue.INVERTED_STEPS.value:
        return None
    part = Table(steps.matrix[longest])
    reason = most_frequent_reason(part)
    head, span_s = int(part["head"][-1]), float(part["end_s"][-1] - part["start_s"][0])
    links = (
        CausalLink(_urgent(window, head, part), {"number": head, "steps": len(longest), "span_s": span_s}),
        CausalLink(
            f"less urgent requests run meanwhile: urgent heads waited in {len(longest)} steps in a row"
            f" ({seconds(span_s)}), and in {percent(float(inverted.mean()))} of all steps",
            {"inverted_share": float(inverted.mean())},
        ),
        CausalLink(
            f"it is held by {reason.replace('_', ' ')}: priority orders the queue and picks victims,"
            " it takes no place from those who run",
            {"reason": reason.value, "running": part.mean("running")},
        ),
    )
    return Finding(
        "inverted-priority",
        catalogue.BY_ID["inverted-priority"].title,
        Severity.WARNING,
        links,
        window.spans(inverted, lambda reported: f"head {window.name(reported['head'][0])}"),
        remedy(window, reason),
        int(inverted.sum()),
        "steps",
    )


def _urgent(window: FactsWindow, head: int, part: Table) -> str:
    known = window.facts.known.get(head)
    if known is None:
        heads = some(len(np.unique(part["head"])), "urgent request")
        return f"{heads} waited at the head of the queue, {window.name(head)} last"
    waited_s = max(float(part["end_s"][-1]) - known.queued_s, 0.0)
    urgency = f"priority {known.arrival.priority}, lower is more urgent"
    return f"{known.name} ({urgency}) has waited {seconds(waited_s)}"
