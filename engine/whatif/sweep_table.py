"""The outcome of a sweep: table, CSV, JSON, and the line that names the winner."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
from schedtop.engine.contract.sanitize import page
from schedtop.engine.offline.report_text import note_lines
from schedtop.engine.whatif.compared_figures import (
    BY_NAME,
    CUT_OFF,
    FIGURES,
    GOODPUT,
    REFUSED,
    ComparedFigure,
    change_text,
    setting_text,
    value_text,
)
from schedtop.engine.whatif.ranking import decisive, objectives, pareto_set, ranked
from schedtop.engine.whatif.sweep_results import SweepRun

SHOWN = (
    "refused",
    "kv_capacity",
    "goodput",
    "ttft_p50_s",
    "ttft_p95_s",
    "itl_p50_s",
    "itl_p95_s",
    "e2e_p95_s",
    "output_tokens_per_s",
    "preemptions",
    "recomputed_tokens",
    "hit_rate",
)
"""Columns of the table; CSV and JSON have all figures."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a sweep, in order of their combinations. `base` is the place of the settings as they are."""

    source: str
    device: str
    slo: str | None
    names: list[str]
    points: list[dict[str, Any]]
    base: int
    outcomes: list[SweepRun]
    notes: list[str]

    @property
    def documents(self) -> list[dict[str, Any] | None]:
        return [outcome.report for outcome in self.outcomes]

    @property
    def pareto(self) -> list[int]:
        """Places of the runs that no other beats."""
        return pareto_set(self.documents, self.slo is not None)

    @property
    def winner(self) -> int | None:
        """Place of the best run; None if none could be run."""
        order = ranked(self.documents, self.slo is not None)
        return order[0] if order else None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        pareto, winner = self.pareto, self.winner
        runs = [
            {
                "settings": point,
                "base": place == self.base,
                "pareto": place in pareto,
                "winner": place == winner,
                "error": outcome.error,
                "report": outcome.report,
            }
            for place, (point, outcome) in enumerate(zip(self.points, self.outcomes, strict=True))
        ]
        return {
            "source": self.source,
            "device": self.device,
            "slo": self.slo,
            "objectives": [figure.name for figure in objectives(self.slo is not None)],
            "runs": runs,
            "verdict": self.verdict(),
            "notes": self.notes,
        }

    def as_csv(self) -> str:
        """One line per run, knobs first; unknown figures are empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        figures = [figure for figure in FIGURES if figure is not GOODPUT or self.slo is not None]
        marks = ("base", "pareto", "winner", "error")
        writer.writerow([*self.names, *(figure.name for figure in figures), *marks])
        pareto, winner = self.pareto, self.winner
        for place, (point, outcome) in enumerate(zip(self.points, self.outcomes, strict=True)):
            values = [None if outcome.report is None else figure.of(outcome.report) for figure in figures]
            flags = (place == self.base, place in pareto, place == winner)
            writer.writerow([*point.values(), *values, *(int(flag) for flag in flags), outcome.error])
        return out.getvalue().rstrip("\n")

    def as_text(self) -> str:
        """A table, best runs marked, and the verdict below it."""
        figures = [BY_NAME[name] for name in SHOWN if self._is_worth_a_column(name)]
        rows = [["", *self.names, *(figure.label for figure in figures)]]
        pareto, winner = self.pareto, self.winner
        for place, (point, outcome) in enumerate(zip(self.points, self.outcomes, strict=True)):
            mark = "winner" if place == winner else "pareto" if place in pareto else ""
            mark = f"{mark} base".strip() if place == self.base else mark
            rows.append([mark, *(setting_text(value) for value in point.values()), *_cells(figures, outcome)])
        widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
        lines = ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=False)) for row in rows]
        return page(
            [f"{self.source} on {self.device}", *self.notes, "", *lines, "", self.verdict(), *self._reported()]
        )

    def _reported(self) -> list[str]:
        """Notes on the base settings, or on the first run there is."""
        documents = [self.documents[self.base], *self.documents]
        return note_lines(next((document for document in documents if document is not None), {}))

    def verdict(self) -> str:
        """One line: the winner, and by how much over the next one and over the settings as they are."""
        documents, order = self.documents, ranked(self.documents, self.slo is not None)
        if not order:
            return f"no combination can be run: {self.outcomes[0].error}"
        best = documents[order[0]]
        assert best is not None
        figure = self._decisive(order)
        if figure is None:
            figure = decisive(self.slo is not None)
            return (
                f"no difference: {figure.label} is {value_text(figure, figure.of(best))} in all {len(order)} runs"
            )
        text = f"winner {self._name(order[0])}: {figure.label} {value_text(figure, figure.of(best))}"
        if len(order) > 1:
            text += f", {self._lead(figure, order[1])} the next ({self._name(order[1])})"
        if self.base in order and self.base not in order[:2]:
            text += f", {self._lead(figure, self.base)} the settings as they are ({self._name(self.base)})"
        return text + (" (which is as it is now)" if order[0] == self.base else "")

    def _decisive(self, order: list[int]) -> ComparedFigure | None:
        """The first objective in which the best run and the next differ; else one in which any runs do."""
        judged = [document for document in map(self.documents.__getitem__, order) if document is not None]
        first, *others = objectives(self.slo is not None)
        for documents, figures in ((judged[:2], [first, *others]), (judged, [*others, first])):
            for figure in figures:
                if len({figure.of(document) for document in documents}) > 1:
                    return figure
        return None

    def _is_worth_a_column(self, name: str) -> bool:
        if name == GOODPUT.name:
            return self.slo is not None
        if name not in (REFUSED.name, CUT_OFF.name):
            return True
        return any(document and BY_NAME[name].of(document) for document in self.documents)

    def _lead(self, figure: ComparedFigure, place: int) -> str:
        winner, other = self.winner, self.documents[place]
        assert winner is not None
        best = self.documents[winner]
        assert best is not None and other is not None
        text = change_text(figure, figure.of(other), figure.of(best))
        return "the same as" if text in ("=", "") else f"{text} against"

    def _name(self, place: int) -> str:
        return " ".join(f"{name}={setting_text(value)}" for name, value in self.points[place].items())


def _cells(figures: list[ComparedFigure], outcome: SweepRun) -> list[str]:
    if outcome.report is None:
        return [f"not run: {outcome.error}"]
    return [figure.text(outcome.report) for figure in figures]
