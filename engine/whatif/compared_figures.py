"""The figures that runs are compared by: one table, which texts, CSV, Pareto sets and winners derive from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schedtop.engine.offline.report_text import duration_text, percent_text

MOST_VALUES = 4
"""Values of one knob over time that are written out."""

SHARES = ("p50", "p95", "p99")
"""The percentiles that runs are compared by."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of a report's document. `better` is 1 where more is better, -1 where less is, 0 for neither.

    `name` is what JSON and CSV call it, unit suffix included; `label` is for reading.
    """

    name: str
    label: str
    path: tuple[str, ...]
    unit: str
    better: int = 0

    def is_bound(self, document: Document) -> bool:
        """Open requests can only raise it."""
        part = document.get(self.path[0])
        return isinstance(part, Mapping) and self.path[-1] in part.get("lower_bound", ())

    def text(self, document: Document) -> str:
        """Its value for reading; `>` says that it is a lower bound."""
        return (">" if self.is_bound(document) else "") + value_text(self, self.of(document))

    def of(self, document: Document) -> float | None:
        """Its value in a report's document; None where it is unknown."""
        value: Any = document
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if self.unit != "per_s" or value is None:
            return value if isinstance(value, int | float) else None
        return value / document["clock_s"] if document["clock_s"] else None


def _latencies(name: str) -> tuple[ComparedFigure, ...]:
    label, part = name.upper(), f"{name}_s"
    shares = (ComparedFigure(f"{name}_{share}_s", f"{label} {share}", (part, share), "s", -1) for share in SHARES)
    counts = (ComparedFigure(f"{name}_{count}", f"{label} {count}", (part, count), "") for count in ("n", "open"))
    return (*shares, *counts)


GOODPUT = ComparedFigure("goodput", "goodput", ("goodput", "share"), "share", 1)
REFUSED = ComparedFigure("refused", "refused", ("requests", "refused"), "", -1)
CUT_OFF = ComparedFigure("kv_capacity", "cut off", ("requests", "kv_capacity"), "", -1)
THROUGHPUT = ComparedFigure("output_tokens_per_s", "throughput", ("tokens", "output"), "per_s", 1)
FIGURES: tuple[ComparedFigure, ...] = (
    *_latencies("ttft"),
    *_latencies("itl"),
    *_latencies("e2e"),
    THROUGHPUT,
    GOODPUT,
    ComparedFigure("finished", "finished", ("requests", "finished"), "", 1),
    CUT_OFF,
    REFUSED,
    ComparedFigure("preemptions", "preemptions", ("preemptions",), "", -1),
    ComparedFigure("recomputed_tokens", "recomputed tokens", ("tokens", "recomputed"), "", -1),
    ComparedFigure("scheduled_tokens", "scheduled tokens", ("tokens", "scheduled"), ""),
    ComparedFigure("hit_rate", "hit rate", ("hit_rate",), "share", 1),
    ComparedFigure("host_hit_rate", "hits in host memory", ("hits_by_tier", "host"), "share"),
    ComparedFigure("budget_use_tokens", "budget use, tokens", ("budget_use", "tokens"), "share"),
    ComparedFigure("budget_use_rows", "budget use, rows", ("budget_use", "rows"), "share"),
    ComparedFigure("peak_kv_usage", "peak KV usage", ("peak_kv_usage",), "share"),
    ComparedFigure("steps", "steps", ("steps",), ""),
    ComparedFigure("clock_s", "time", ("clock_s",), "s"),
)
BY_NAME = {figure.name: figure for figure in FIGURES}


def shown(document: Document) -> list[ComparedFigure]:
    """The figures a document can have: goodput only under an SLO, what is open only where anything is."""
    return [
        figure
        for figure in FIGURES
        if (figure is not GOODPUT or "goodput" in document)
        and (figure.path[-1] not in ("open", "kv_capacity", "host") or figure.of(document))
    ]


def shown_in(*documents: Document) -> list[ComparedFigure]:
    """The figures that any of these documents can have."""
    return [figure for figure in FIGURES if any(figure in shown(document) for document in documents)]


def value_text(figure: ComparedFigure, value: float | None) -> str:
    """A figure for reading; `n/a` is unknown."""
    match figure.unit:
        case "s":
            return duration_text(value)
        case "share":
            return percent_text(value)
        case "per_s":
            return "n/a" if value is None else f"{value:,.1f}/s"
    return "n/a" if value is None else f"{value:,.0f}"


def change_text(figure: ComparedFigure, base: float | None, variant: float | None) -> str:
    """The change from one value to another: shares in points, other figures also relative to the base."""
    if base is None or variant is None:
        return ""
    if base == variant:
        return "="
    step = variant - base
    sign = "+" if step > 0 else "−"
    if figure.unit == "share":
        return f"{sign}{abs(step) * 100:.1f} points"
    text = f"{sign}{value_text(figure, abs(step))}"
    share = abs(step / base) if base else 0.0
    return f"{text} ({sign}{share:.{1 if share < 1 else 0}%})" if base else text


def setting_text(value: Any) -> str:
    """A knob's value for reading; of a list, its values one after the other."""
    if isinstance(value, list):
        shown = value if len(value) <= MOST_VALUES else [value[0], "…", value[-1]]
        return ", then ".join(map(setting_text, shown))
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
