"""Findings as text and as JSON, for pipes and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from schedtop.console.explain.finding import Finding, as_dict, seconds, some
from schedtop.console.explain.log import Episode, Log, LogEntry
from schedtop.console.explain.tries import TriedValues

_MAX_EPISODES = 4


def document(log: Log, outcomes: Mapping[str, TriedValues]) -> dict[str, Any]:
    """Everything found, as plain JSON values; findings the most severe first, each the strongest of its looks.

    `outcomes` are what the remedies of some findings would do.
    """
    return {
        **_extent(log),
        "findings": [
            {
                **as_dict(entry.best),
                "looks": entry.looks,
                "episodes": [asdict(episode) for episode in entry.episodes],
                **({"tried": asdict(outcomes[entry.best.id])} if entry.best.id in outcomes else {}),
            }
            for entry in _by_weight(log)
        ],
    }


def page(log: Log, outcomes: Mapping[str, TriedValues]) -> str:
    """The same for reading; no colour, no escapes, no newline at the end."""
    extent, entries = _extent(log), _by_weight(log)
    span = (
        f"{extent['steps']:,} {_noun(extent['steps'], 'step')}, {seconds(extent['clock_s'])} on the engine's clock"
    )
    if not entries:
        return f"Nothing found over {span}: no symptom passed its threshold."
    parts = [
        f"{some(len(entries), 'finding')} over {span}, {extent['requests']:,} {_noun(extent['requests'], 'request')}"
    ]
    parts += [_entry(number, entry, outcomes.get(entry.best.id)) for number, entry in enumerate(entries, start=1)]
    return "\n\n".join(parts)


def _noun(number: int, noun: str) -> str:
    return some(number, noun).split(" ", 1)[1]


def _extent(log: Log) -> dict[str, Any]:
    facts = log.diagnosis.facts
    return {
        "steps": facts.num_steps,
        "clock_s": facts.clock_s,
        "requests": facts.num_arrivals,
        "window_s": log.diagnosis.window_s,
    }


def _by_weight(log: Log) -> list[LogEntry]:
    return sorted(log.ranked(), key=lambda entry: (entry.best.id != "overload", -entry.best.severity, -entry.looks))


def _entry(number: int, entry: LogEntry, outcome: TriedValues | None) -> str:
    finding = entry.best
    lines = [
        f"{number}. {finding.severity.word.upper()} {finding.title}",
        f"   {finding.id}; held {_held(entry.episodes)}",
        f"   {extent_words(finding)}",
        *(f"   {'   ' * depth}{'<- ' if depth else ''}{link.words}" for depth, link in enumerate(finding.links)),
    ]
    lines += [f"   at {steps.label}" + (f": {steps.words}" if steps.words else "") for steps in finding.steps]
    lines += [f"   {line}" for line in _remedies(finding, outcome)]
    return "\n".join(lines)


def _remedies(finding: Finding, outcome: TriedValues | None) -> list[str]:
    """What was measured; other remedies by name."""
    if outcome is None:
        return [f"try {advice.title}" for advice in finding.advice]
    if outcome.failed:
        lines = [f"no forecast: {outcome.failed}"]
    elif outcome.helpful:
        lines = [f"try {tried.title}: {tried.words}" for tried in outcome.helpful]
    else:
        lines = [f"none of these helps: {', '.join(outcome.tried)}"] if outcome.tried else []
    others = (advice for advice in finding.advice if not advice.live)
    return lines + [f"try {advice.title}" for advice in others]


def extent_words(finding: Finding) -> str:
    """The basis of the figures: window and samples."""
    return (
        f"window of {seconds(finding.window_s)} that ends at {seconds(finding.to_s)},"
        f" {some(finding.num_steps, 'step')}, n={finding.n} ({finding.what})"
    )


def _held(episodes: list[Episode]) -> str:
    words = [f"{seconds(episode.from_s)}..{seconds(episode.to_s)}" for episode in episodes[:_MAX_EPISODES]]
    more = f" and {some(len(episodes) - _MAX_EPISODES, 'more time')}" if len(episodes) > _MAX_EPISODES else ""
    return ", ".join(words) + more
