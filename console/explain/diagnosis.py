"""A diagnosis: takes in messages and reports findings in the window before the newest one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from schedtop.console.drawing import text
from schedtop.console.explain import (
    cache,
    capacity,
    catalogue,
    device,
    ends,
    fairness,
    itl,
    overload,
    priority_order,
    progress,
    queue,
    ttft,
)
from schedtop.console.explain import knob_change as change
from schedtop.console.explain.facts import Facts
from schedtop.console.explain.finding import Advice, Finding
from schedtop.console.explain.window import Bounds, FactsWindow
from schedtop.engine.contract.telemetry import Header, Outgoing, Snapshot, StepRecord

FINDERS: Mapping[str, Callable[[FactsWindow], Finding | None]] = {
    "overload": overload.find_overload,
    "cut-off": ends.find_cut_off,
    "starvation": fairness.find_starving,
    "refused": ends.find_refused,
    "ttft-decodes": ttft.find_decodes,
    "ttft-backlog": ttft.find_backlog,
    "ttft-sequence-cap": ttft.find_sequence_cap,
    "ttft-pool": ttft.find_pool,
    "itl-prompts": itl.find_prompts,
    "itl-spikes": itl.find_spikes,
    "preemption-pressure": capacity.find_pressure,
    "preempt-loop": capacity.find_loop,
    "queue-low-use": queue.find_low_use,
    "watermark-holds": queue.find_watermark,
    "head-blocks-smaller": queue.find_head_blocks,
    "inverted-priority": priority_order.find_inverted,
    "starved-after-change": change.find_starved,
    "hit-rate-falling": cache.find_falling,
    "lost-hits": cache.find_lost,
    "aborted-prefill": ends.find_aborted,
    "deferred": fairness.find_deferred,
    "no-progress": progress.find_none,
    "slow-device": device.find_slow,
    "idle-device": device.find_idle,
    "front-end": device.find_front_end,
}
"""The detector of each finding in `catalogue.RULES`."""

ACROSS_CHANGES = frozenset(
    ("starved-after-change", "hit-rate-falling", "no-progress", "slow-device", "idle-device", "front-end")
)
"""Findings that a knob change does not put an end to. Others count from the newest change on: evidence from under the
old limits must not advise on the new ones."""


class Diagnosis:
    """Cheap to feed, bounded in memory; `findings` is the work, for about once a second.

    `window_s` is how far back it looks on the engine's clock; bounds are the operator's SLOs.
    """

    def __init__(self, window_s: float = catalogue.WINDOW.value, bounds: Bounds | None = None) -> None:
        self.facts = Facts()
        self.window_s = window_s
        self.bounds = bounds or Bounds()

    def take(self, message: Outgoing) -> None:
        """Take in the engine's messages in order; those that say nothing about its work are ignored."""
        if isinstance(message, StepRecord):
            self.facts.take_record(message)
        elif isinstance(message, Snapshot):
            self.facts.take_snapshot(message)
        elif isinstance(message, Header):
            self.facts.take_header(message)

    def findings(self, silent_s: float | None = None) -> list[Finding]:
        """What holds in the window now, the most severe first. `silent_s`: how long a live engine sent nothing."""
        whole = FactsWindow(self.facts, self.window_s, self.bounds, silent_s)
        change = next((item for item in reversed(whole.changes) if item.event.name != "rate"), None)
        fresh = whole
        if change is not None:
            fresh = FactsWindow(self.facts, self.window_s, self.bounds, silent_s, change.seq)
        found = {}
        for name, find in FINDERS.items():
            window = whole if name in ACROSS_CHANGES else fresh
            finding = find(window)
            if finding is not None:
                found[name] = _measured(finding, window)
        present = [
            finding
            for name, finding in found.items()
            if not any(other in found for other in catalogue.BY_ID[name].yields_to)
        ]
        # Overload explains most of what else is found.
        return sorted(present, key=lambda finding: (finding.id != "overload", -finding.severity))


def _measured(finding: Finding, window: FactsWindow) -> Finding:
    advice = finding.advice
    if finding.steps:
        advice = tuple(_as_of(window, one, finding.steps[-1].last_seq) for one in advice)
    return replace(
        finding,
        advice=advice,
        window_s=window.window_s,
        num_steps=len(window.steps),
        from_s=window.from_s,
        to_s=window.end_s,
    )


def _as_of(window: FactsWindow, advice: Advice, seq: int) -> Advice:
    """With the knob's value at the moment of the evidence, where it has changed since."""
    if not advice.knob or window.knob_then(advice.knob, seq) == window.knob(advice.knob):
        return advice
    then = text.value(window.knob_then(advice.knob, seq))
    return replace(advice, now=f"{advice.now}, {then} then" if advice.now else "", then=then)
