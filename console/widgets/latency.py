"""[4] Latency: first-token and inter-token times over a window, against their SLOs."""

from __future__ import annotations

import math
from typing import ClassVar

from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD
from schedtop.console.past import sample_sizes
from schedtop.console.past.client import KeptClientLatencies
from schedtop.console.past.latency import BUCKET_S, column_of, last_column_s
from schedtop.console.past.open_latencies import cohort_of, unended
from schedtop.console.view import WINDOWS_S, View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.engine.contract.latencies.cohort import Cohort
from schedtop.engine.contract.latencies.samples import Samples, merge

GUTTER = 10
PLAIN = Style(bold=False, underline=False)
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


class LatencyPanel(Panel):
    NUMBER: ClassVar[int] = 4
    TITLE: ClassVar[str] = "Latency"
    UNHURRIED: ClassVar[bool] = True
    HELP: ClassVar[str] = """\
TTFT  first output token - arrival, waiting included; one sample per request.
ITL   gap between two deliveries to a client (a verified burst of drafts is one); one sample per gap.
Percentiles interpolate linearly, over the window named in the title; n is how many samples they rest on. A p50 needs
10, a p95 20, a p99 100; – stands for a figure of too few samples.
Who still waits is counted too, with what the wait has come to so far (n 93+310: the second are open): > is a lower
bound, which such waits can only raise. ! marks a figure past its SLO. The share beside the SLO is of those known to be
within it or past it; one still open is past it as soon as its wait is.
Each column of the graph is the p95 of its part of the window, however few its samples; the newest also counts requests
that still wait. The dashed line is the SLO.
K marks a knob change.
client TTFT, client E2E  what clients see: the scheduler's latency and the time outside it. Shown where a front end is
simulated or requests report that time. They begin with the last 8,192 steps before they were first shown.
+ and - choose a longer or shorter window."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self._client = KeptClientLatencies()
        # By kind, of all columns but the newest, which a second that is over leaves as they are: what they are of, all
        # samples, and the p95 of each.
        self._earlier: dict[str, tuple[tuple[object, ...], Samples, list[float | None]]] = {}

    def headline(self) -> Pieces:
        view = self.view
        begins_s = view.history.latency.begins_s
        words = f"window {text.duration(view.window_s).replace('.0s', 's')}"
        so_far_s = math.inf if begins_s is None else view.moment.clock_s - begins_s
        if so_far_s < view.window_s - 1:
            words += f" ({so_far_s:.0f}s so far)"
        return [(words, "text")]

    def body(self, width: int, height: int) -> list[Line]:
        compact = height < 6
        self._open_s = unended(self.view.moment.state)
        felt = self._client.window(self.view.history, self.view.moment, self.view.window_s)
        height -= 0 if compact else len(felt)
        slos = (("ttft", self.view.options.ttft_slo_s), ("itl", self.view.options.itl_slo_s))
        lines: list[Line] = []
        for index, (kind, slo_s) in enumerate(slos):
            if compact:
                lines.append(self._short(kind, slo_s, width, felt.get(kind)))
            else:
                rows = (height - 2 + (index == 0)) // 2
                lines += self._full(kind, slo_s, width, rows)
        return lines[:height] if compact else [*lines[:height], *self._client_lines(felt, width)]

    def _client_lines(self, felt: dict[str, Cohort], width: int) -> list[Line]:
        """What clients feel, a line each."""
        palette, lines = self.view.palette, []
        for kind, whole in felt.items():
            line = self._figures(f"client {kind.upper():4s}", whole, None)
            lines.append(line.right(width, Line().add(f"{_size(whole)} ", palette["muted"]), palette["text"]))
        return lines

    def _window(self, kind: str, num_columns: int) -> tuple[Cohort, list[float | None]]:
        """All samples of the window with those still open, and the p95 of each column."""
        view, moment, open_s = self.view, self.view.moment, self._open_s[kind]
        history, clock_s = view.history, moment.clock_s
        key = history.latency, int(clock_s // BUCKET_S), view.window_s, num_columns
        if self._earlier.get(kind, ((),))[0] != key:
            *earlier, _ = history.latency_columns(kind, moment, view.window_s, num_columns)
            self._earlier[kind] = key, merge(earlier), [samples.quantile(0.95) for samples in earlier]
        _, before, earlier_s = self._earlier[kind]
        newest_s = last_column_s(clock_s, view.window_s, num_columns)
        newest = merge(history.latency_columns(kind, moment, newest_s, num_columns))
        now = cohort_of(newest, open_s).quantile(0.95)
        return cohort_of(merge([before, newest]), open_s), [*earlier_s, None if now is None else now.least]

    def _full(self, kind: str, slo_s: float | None, width: int, rows: int) -> list[Line]:
        """Figures, then a graph with its scale and SLO at the right."""
        palette = self.view.palette
        whole, p95_s = self._window(kind, width - GUTTER)
        line = self._figures(kind.upper(), whole, slo_s)
        line.right(width, Line().add(f"{_size(whole)} ", palette["muted"]), palette["text"])
        top_s, slo_row = _scale(p95_s, slo_s, rows)
        graph = self._graph(p95_s, slo_s, width - GUTTER, rows)
        notes = self._notes(whole, slo_s, top_s, slo_row, rows)
        return [
            line,
            *(part.add(" ", palette["text"]).extend(note) for part, note in zip(graph, notes, strict=True)),
        ]

    def _short(self, kind: str, slo_s: float | None, width: int, felt: Cohort | None) -> Line:
        """Everything in one line."""
        palette = self.view.palette
        room = min(30, max(0, width - 50 - (25 if felt is not None else 0)))
        whole, p95_s = self._window(kind, max(room, 10))
        line = self._figures(kind.upper(), whole, slo_s, names=False)
        line.add(f" {_size(whole)}", palette["muted"])
        if felt is not None:
            line.add("  ", palette["text"]).extend(self._figures("client", felt, None, names=False).pieces)
        if slo_s is not None:
            line.add("  SLO ", palette["muted"]).add(f"{text.ms(slo_s)}", palette["text"])
            line.add(f" {met} ok" if (met := _met(whole, slo_s)) else "", palette["muted"])
        if room < 10:
            return line
        graph = self._graph(p95_s, slo_s, room, 1)[0]
        return line.right(width, graph, palette["text"])

    def _figures(self, title: str, whole: Cohort, slo_s: float | None, names: bool = True) -> Line:
        palette = self.view.palette
        line = Line().add(f"{title:4s}", palette["text"] + BOLD)
        found = [sample_sizes.bounded(whole, share) for share, _ in QUANTILES]
        values = [None if figure is None else figure.least for figure in found]
        any_there = whole.n + whole.num_open > 0
        figures, unit = text.times(values)
        for place, ((_, name), value, figure) in enumerate(zip(QUANTILES, values, figures, strict=True)):
            bound = found[place]
            figure = f">{figure}" if bound is not None and bound.is_bound else figure
            late = slo_s is not None and value is not None and value > slo_s
            line.add(f"  {name} " if names else "/" if place else " ", palette["muted"])
            if value is None and any_there:
                line.add(sample_sizes.LACK, palette["muted"])
            else:
                line.add(f"{figure}{'!' if late else ''}", palette["breach" if late else "text"])
        return line if any_there and values[0] is None else line.add(f" {unit}", palette["muted"])

    def _notes(
        self, whole: Cohort, slo_s: float | None, top_s: float, slo_row: int | None, rows: int
    ) -> list[list[tuple[str, Style]]]:
        """The label right of each row of the graph, from the top."""
        palette = self.view.palette
        notes: list[list[tuple[str, Style]]] = [[] for _ in range(rows)]
        if slo_s is not None and slo_row is not None:
            met = _met(whole, slo_s)
            notes[rows - 1 - slo_row] = [("SLO ", palette["warn"] + PLAIN), (text.ms(slo_s), palette["text"])]
            free = [row for row in range(rows - 1, -1, -1) if not notes[row]]
            if free and met:
                notes[free[0]] = [(f"{met} ok", palette["muted"])]
        if rows > 1 and not notes[0] and whole.n + whole.num_open:
            notes[0] = [(text.ms_unit(top_s), palette["faint"])]
        return notes

    def _graph(self, p95_s: list[float | None], slo_s: float | None, width: int, rows: int) -> list[Line]:
        """The p95 of each column, stretched to `width`; columns past the SLO in the colour of a breach."""
        palette, glyphs = self.view.palette, self.view.glyphs
        top_s, slo_row = _scale(p95_s, slo_s, rows)
        values = [p95_s[x * len(p95_s) // width] for x in range(width)]
        levels = len(glyphs.spark)
        heights = [0 if value is None else max(1, round(value / top_s * rows * levels)) for value in values]
        good, late, line_style, none = (palette[role] + PLAIN for role in ("decode", "breach", "warn", "text"))
        fills = [late if slo_s is not None and value is not None and value > slo_s else good for value in values]
        lines = []
        for row in range(rows - 1, -1, -1):
            base = row * levels
            blank = (glyphs.slo, line_style) if row == slo_row else (" ", none)
            cells = [
                (glyphs.spark[min(levels, height - base) - 1], fill) if height > base else blank
                for height, fill in zip(heights, fills, strict=True)
            ]
            if row == rows - 1:
                for x in self._marked(len(p95_s), width):
                    cells[x] = ("K", palette["accent"])
            lines.append(Line().cells([char for char, _ in cells], [style for _, style in cells]))
        return lines

    def _marked(self, num_columns: int, width: int) -> list[int]:
        """Cells of the graph under which a knob was changed."""
        view = self.view
        moment = view.moment
        found = []
        for event in view.history.of_kind("K"):
            if event.clock_s < moment.clock_s - view.window_s:
                break
            if event.seq <= moment.seq:
                column = column_of(event.clock_s, moment.clock_s, view.window_s, width)
                if column is not None and column < num_columns:
                    found.append(-(-column * width // num_columns))
        return found

    def resize_window(self, direction: int) -> None:
        """A longer (+1) or shorter (-1) window."""
        index = min(range(len(WINDOWS_S)), key=lambda i: abs(WINDOWS_S[i] - self.view.window_s)) + direction
        self.view.window_s = WINDOWS_S[min(max(index, 0), len(WINDOWS_S) - 1)]


def _size(whole: Cohort) -> str:
    """`n 93+310`: known and open."""
    still = f"+{text.count(whole.num_open)}" if whole.num_open else ""
    return f"n {text.count(whole.n)}{still}"


def _met(whole: Cohort, slo_s: float) -> str:
    """The SLO share; empty while nobody is judged."""
    within, past = whole.judged(slo_s)
    return text.share(within, within + past) if within + past else ""


def _scale(p95_s: list[float | None], slo_s: float | None, rows: int) -> tuple[float, int | None]:
    """The value at the graph's full height, and the row of the SLO, counted from below."""
    top_s = max([*filter(None, p95_s), slo_s * 1.3 if slo_s else 0.0, 1e-6])
    return top_s, min(rows - 1, int(slo_s / top_s * rows)) if slo_s else None
