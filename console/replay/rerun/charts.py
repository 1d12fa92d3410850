"""Two runs over each other against time: the recorded one as an area, the re-run as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import Layer, draw_columns
from schedtop.console.replay.rerun.curves import BATCH, CHARTS, TOKENS, Chart, Floats
from schedtop.console.replay.rerun.panels import RunsPanel
from schedtop.console.replay.timeline import clock
from schedtop.console.widgets.panel import Pieces

if TYPE_CHECKING:
    from schedtop.console.replay.rerun.overlay import Overlay
    from schedtop.console.view import View

GUTTER = 20
LEAST_ROWS = 2
GAP = 0.125
"""Of a row, above the highest value: charts do not run into each other."""
_BATCH_SHARE = 1.5


class ChartsPanel(RunsPanel):
    TITLE: ClassVar[str] = "Both runs"
    HELP: ClassVar[str] = """\
Every chart shows two runs against time on the recording's clock: the area is the recorded run, the line the re-run
under the changed knobs. Batch has a strip of columns for each, the recorded one above; tokens of a step are a mean
over the steps of a column, as are KV in use, running and waiting; TTFT and ITL are the p95 of a column.
The figures at the left are those of the chosen moment; Left and Right choose it, + and - show a shorter or longer
stretch around it, z all of it. D under the charts marks the first step that is not the same in both runs: d goes
there, and Enter shows the chosen moment in the replay.
What was recorded on a real device is simulated with step times fitted to it. Only two simulated runs can be compared
fairly: the area is then the recording run again as it was, and o puts the recorded run itself there."""

    def __init__(self, view: View, overlay: Overlay, *, id: str) -> None:
        super().__init__(view, overlay, id=id)
        self._known: tuple[object, list[tuple[Chart, Floats, Floats, float]]] = (None, [])

    def headline(self) -> Pieces:
        overlay, glyphs = self.overlay, self.view.glyphs
        if overlay.outcome is None:
            return []
        return [
            *overlay.page_note,
            (f"{glyphs.area * 2} {overlay.under_name}", "muted"),
            (f"{glyphs.trace[1] * 2} {overlay.variant_name}", "accent"),
        ]

    def body(self, width: int, height: int) -> list[Line]:
        overlay = self.overlay
        if overlay.outcome is None:
            return []
        cells = width - GUTTER
        charts = self._charts(cells)
        heights = self._heights(height - 1)
        lines: list[Line] = []
        for (chart, under, over, top), rows in zip(charts[self._top :], heights, strict=False):
            lines += self._chart(chart, under, over, top, cells, rows)
        lines += [Line() for _ in range(height - 1 - len(lines))]
        return [*lines, self._axis(cells)]

    def _heights(self, room: int) -> list[int]:
        """Rows of each shown chart: all where there is room, else as many as fit from the chosen one on."""
        num = len(CHARTS) + 1
        fits = max(1, min(num, room // LEAST_ROWS))
        self._top = max(0, min(self._top, num - fits))
        if fits < num:
            return [LEAST_ROWS + (place < room % LEAST_ROWS) for place in range(fits)]
        each = int(room / (len(CHARTS) + _BATCH_SHARE))
        spare = room - each * num
        heights = [each] * num
        for place in [0, *range(num)]:
            heights[place] += spare > 0
            spare -= 1
        return heights

    def _charts(self, cells: int) -> list[tuple[Chart, Floats, Floats, float]]:
        """Values of both runs in every chart, and what its full height stands for."""
        overlay = self.overlay
        key = (overlay.version, overlay.span, overlay.over_recorded, cells)
        if self._known[0] != key:
            found = []
            for chart in (BATCH, *CHARTS):
                under, over = (chart.values(curves, overlay.span, cells) for curves in overlay.pair)
                seen = np.concatenate([under, over])
                top = float(np.nanmax(seen)) if not np.isnan(seen).all() else 0.0
                found.append((chart, under, over, max(top, chart.least) or 1.0))
            self._known = (key, found)
        return self._known[1]

    # One chart

    def _chart(self, chart: Chart, under: Floats, over: Floats, top: float, cells: int, rows: int) -> list[Line]:
        chosen = self.overlay.column(cells)
        notes = self._notes(chart, under[chosen], over[chosen], top, rows)
        if chart is BATCH and rows >= 2:
            drawn = self._two_batches(cells, rows)
        else:
            full = rows - GAP
            drawn = self._over(under / top * full, over / top * full, rows, chosen)
        return [note.extend(line.pieces) for note, line in zip(notes, drawn, strict=True)]

    def _notes(self, chart: Chart, under: float, over: float, top: float, rows: int) -> list[Line]:
        """What stands left of a chart: its name, the values of the chosen moment, what the full height is."""
        palette, glyphs = self.view.palette, self.view.glyphs
        name = f"{chart.name} {chart.unit}".strip()
        first = Line().add(f" {name}", palette["text"] + Style(bold=True))
        first.right(GUTTER - 1, Line().add(_figure(top, chart.unit), palette["faint"]), palette["text"])
        gap = " " if rows > 2 else ""
        values = [
            Line().add(f" {sign}{gap}{_figure(value, chart.unit):<7}", palette[role])
            for sign, value, role in ((glyphs.area, under, "muted"), (glyphs.trace[1], over, "accent"))
        ]
        if rows == 1:
            notes = [first]
        elif rows == 2:
            notes = [first, values[0].extend(values[1].pieces)]
        elif chart is BATCH:
            notes = [first, values[0], *(Line() for _ in range(rows - 3)), values[1]]
        else:
            notes = [first, *values, *(Line() for _ in range(rows - 3))]
        edge = glyphs.column
        return [note.pad(GUTTER - 1, palette["text"]).add(edge, palette["rule"]) for note in notes]

    def _two_batches(self, cells: int, rows: int) -> list[Line]:
        """A strip of columns by class of token for each run, to the same scale."""
        palette, glyphs, overlay = self.view.palette, self.view.glyphs, self.overlay
        layers = tuple(Layer(role, role[0].upper(), getattr(glyphs, role)) for role in TOKENS)
        stacks = []
        for curves in overlay.pair:
            parts = np.array([curves.mean(name, overlay.span, cells) for name in TOKENS]).T
            stacks.append(np.nan_to_num(parts))
        top = max(float(stack.sum(axis=1).max()) for stack in stacks) or 1.0
        lines = []
        for stack, share in zip(stacks, (rows - rows // 2, rows // 2), strict=True):
            lines += draw_columns(stack / top * (1 - GAP / share), share, layers, palette, glyphs)
        return lines

    def _over(self, under: Floats, over: Floats, rows: int, chosen: int) -> list[Line]:
        """An area and a line in one chart. Heights are in rows; NaN is nothing."""
        lines = []
        levels = [_level(value, rows) for value in over]
        filled = [-1 if np.isnan(value) else max(1, round(value * 8)) if value > 0 else 0 for value in under]
        for row in range(rows - 1, -1, -1):
            cells = [
                self._cell(fill - row * 8, level if place == row else None, x == chosen)
                for x, (fill, (place, level)) in enumerate(zip(filled, levels, strict=True))
            ]
            lines.append(Line().cells([char for char, _ in cells], [style for _, style in cells]))
        return lines

    def _cell(self, eighths: int, level: int | None, chosen: bool) -> tuple[str, Style]:
        """One cell: how many eighths of it the area fills, and where in it the line runs, if it does."""
        palette, glyphs = self.view.palette, self.view.glyphs
        solid = palette.solid and bool(glyphs.eighths)
        ground = "cursor" if chosen else "background"
        if level is not None:
            char = glyphs.trace[level]
            if solid and eighths >= 4:
                return char, palette.fill("accent", "unused")
            return char, palette.on("accent", ground)
        if eighths <= 0:
            return " ", palette.on("text", ground)
        if not solid:
            return glyphs.area, palette.on("muted", ground)
        if eighths >= 8:
            return " ", palette.fill("unused", "muted" if chosen else "unused")
        return glyphs.eighths[eighths], palette.fill("unused", ground)

    # Below all of them

    def _axis(self, cells: int) -> Line:
        palette, glyphs, overlay = self.view.palette, self.view.glyphs, self.overlay
        outcome = overlay.outcome
        assert outcome is not None
        span = overlay.span
        end_s = outcome.start_s + overlay.whole.end_s
        words = f" at {clock(outcome.start_s + overlay.moment_s, end_s)}"
        line = Line().add(words, palette["text"] + Style(bold=True)).pad(GUTTER, palette["text"])
        begin, end = (f" {clock(outcome.start_s + at_s, end_s)} " for at_s in span)
        chars = [glyphs.rule] * cells
        styles = [palette["rule"]] * cells
        chosen = overlay.column(cells)
        parting = overlay.parting_s
        place = None if parting is None else span.column(parting, cells)
        for start, label in ((0, begin), (cells - len(end), end)):
            if not {chosen, place} & {*range(start, start + len(label))}:
                chars[start : start + len(label)] = label
                styles[start : start + len(label)] = [palette["muted"]] * len(label)
        if place is not None:
            chars[place], styles[place] = "D", palette["warn"] + Style(bold=True)
        chars[chosen] = "D" if chosen == place else glyphs.up
        styles[chosen] = palette["accent"] + Style(reverse=True)
        return line.cells(chars, styles)

    def click_line(self, y: int, x: int) -> None:
        cells = self.size.width - GUTTER
        if self.overlay.outcome is not None and x >= GUTTER:
            self.overlay.choose(self.overlay.span.middle_s(min(cells - 1, x - GUTTER), cells))


def _level(value: float, rows: int) -> tuple[int, int | None]:
    """The row of a line's point from below, and which third of it."""
    if np.isnan(value):
        return -1, None
    thirds = min(rows * 3 - 1, int(value * 3))
    return thirds // 3, thirds % 3


def _figure(value: float, unit: str) -> str:
    """In few cells; many ms as seconds, which then say so."""
    if np.isnan(value):
        return text.NONE
    if unit == "ms" and value >= 9999.5:
        return f"{value / 1000:.1f} s" if value < 99_950 else f"{value / 1000:.0f} s"
    return f"{value:.1f}" if 0 < abs(value) < 99.95 else text.count(value)
