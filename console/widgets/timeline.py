"""The timeline: lanes over one time axis with one cursor through all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import Layer, draw_columns
from schedtop.console.drawing.styles import BOLD, LIGHT, REVERSED
from schedtop.console.past.ladder import NO_STEP, Bucket, Grid, Ladder, quantile
from schedtop.console.view import View
from schedtop.console.widgets.panel import Pieces

RANGES_S: tuple[float | None, ...] = (10.0, 60.0, 300.0, 3600.0, None)
"""What + and - choose from; None is all."""
LABEL, VALUE = 13, 10
LEAST_WIDTH, LEAST_HEIGHT = 60, 7

MARKS = {"D": "warn", "K": "accent", "X": "breach", "V": "breach", "A": "ok"}
"""Letters and colours; where several fall together the first of these is shown."""

Parts = tuple[float, ...]


class Lane(NamedTuple):
    """One figure over time. `parts` of a column are stacked from below; `value` is shown beside the lane.

    `top` is the least value at full height; None: a share, whose full height is 1. A line
    shows `limit`.
    """

    name: str
    layers: tuple[tuple[str, str, str], ...]
    parts: Callable[[Bucket], Parts]
    value: Callable[[Bucket], str]
    scale: Callable[[float], str]
    top: float | None
    weight: int = 1
    limit: float | None = None


class DrawnRun(NamedTuple):
    """What is drawn, and what it is called where there are several."""

    name: str
    ladder: Ladder


def _parts(lane: Lane, bucket: Bucket) -> Parts:
    """To be worked out once for a column that stays as it is."""
    found = bucket.drawn[lane.name] = lane.parts(bucket)
    return found


def _capped(middle: float | None, peak: float, slo_s: float | None) -> Parts:
    """A fill up to a quantile and a cap up to the worst, each as good or late."""
    fill, cap = min(middle or 0.0, peak), max(0.0, peak - (middle or 0.0))
    late = slo_s is not None and (middle or 0.0) > slo_s
    worst_late = slo_s is not None and peak > slo_s
    return (0.0, fill, 0.0, cap) if late else (fill, 0.0, 0.0, cap) if worst_late else (fill, 0.0, cap, 0.0)


_DURATION = (("accent", "=", "="), ("breach", "!", "!"), ("unused", ".", "."), ("warn", "!", ":"))
"""Layers of a duration: within its SLO, past it, and up to the worst, within and past it."""


HOST = Lane(
    "host",
    (("decode", "c", "c"), ("breach", "!", "!")),
    lambda bucket: (max(bucket.cpu, 0.0), max(bucket.delay, 0.0)),
    lambda bucket: _host(bucket),
    lambda top: f"{top:.1f} cpu",
    1.0,
)
GPU = Lane(
    "GPU",
    (("held", "g", "g"),),
    lambda bucket: (max(bucket.gpu, 0.0),),
    lambda bucket: f"{bucket.gpu:.0%}@{bucket.clock:.0%}" if bucket.clock >= 0 else _percent(bucket.gpu),
    lambda top: "100%",
    None,
)
"""Only where the engine has reported one."""


def _host(bucket: Bucket) -> str:
    return _percent(bucket.cpu) + (f"+{bucket.delay:.0%}" if bucket.delay >= 0 and bucket.cpu >= 0 else "")


def _percent(share: float) -> str:
    return "n/a" if share < 0 else f"{share:.0%}"


def _p95_s(bucket: Bucket, kind: str) -> float | None:
    p95 = bucket.p95(kind)
    return None if p95 is None else p95.least


def _longest_ttft_s(bucket: Bucket) -> float:
    """To a first token, had or still waited for."""
    return max(bucket.max_ttft_s, bucket.max_wait_s, quantile(bucket.open, 1.0) or 0.0)


def _longest_itl_s(bucket: Bucket) -> float:
    """Between two deliveries, or since the last one."""
    return max(bucket.max_itl_s, quantile(bucket.open_itl, 1.0) or 0.0)


def _latency(kind: str, slo_s: float | None, longest_s: Callable[[Bucket], float]) -> Lane:
    """The p95 of a latency and its worst value, against its SLO."""

    def value(bucket: Bucket) -> str:
        p95 = bucket.p95(kind)
        if p95 is None:
            return text.NONE
        late = "!" if slo_s is not None and p95.least > slo_s else ""
        return (">" if p95.is_bound else "") + (text.ms_unit(p95.least) + late if p95.least else text.NONE)

    return Lane(
        kind.upper(),
        _DURATION,
        lambda bucket: _capped(_p95_s(bucket, kind), longest_s(bucket), slo_s),
        value,
        text.ms_unit,
        1e-3,
        weight=2,
        limit=slo_s,
    )


def _watermark(view: View) -> float | None:
    """The share of the pool that may be in use before admission stops; None where all of it may."""
    record = view.moment.record
    if record is None or not record.blocks.watermark:
        return None
    blocks = record.blocks
    return 1.0 - blocks.watermark / (blocks.held + blocks.shared + blocks.cached_free + blocks.empty)


def lanes(view: View) -> tuple[Lane, ...]:
    """The lanes from top to bottom."""
    return (
        Lane(
            "tokens",
            (("decode", "D", view.glyphs.decode), ("prefill", "P", view.glyphs.prefill), ("draft", "S", "S")),
            lambda bucket: bucket.tokens,
            lambda bucket: str(sum(bucket.tokens)),
            text.count,
            1.0,
            weight=3,
        ),
        Lane(
            "step",
            _DURATION,
            lambda bucket: _capped(quantile(bucket.steps, 0.5), bucket.max_step_s, None),
            lambda bucket: text.ms_unit(bucket.max_step_s or None),
            text.ms_unit,
            1e-3,
            weight=2,
        ),
        Lane(
            "KV",
            (("held", "#", view.glyphs.held), ("cached", "c", view.glyphs.cached)),
            lambda bucket: (bucket.used / (bucket.pool or 1), bucket.cached / (bucket.pool or 1)),
            lambda bucket: text.share(bucket.used, bucket.pool),
            lambda top: "100%",
            None,
            weight=2,
            limit=_watermark(view),
        ),
        Lane(
            "run/wait",
            (("decode", "r", "r"), ("warn", "w", "w")),
            lambda bucket: (bucket.running, bucket.waiting),
            lambda bucket: f"{bucket.running}+{bucket.waiting}",
            text.count,
            1.0,
            weight=2,
        ),
        _latency("ttft", view.options.ttft_slo_s, _longest_ttft_s),
        _latency("itl", view.options.itl_slo_s, _longest_itl_s),
        HOST,
        *((GPU,) if view.present.ladder.knows_gpu else ()),
    )


class Timeline:
    """What is in sight of the past; the cursor is the view's."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.range_index = 1
        # By lane, what its rows were drawn from and the rows: most peaks stay while their column is the newest.
        self._drawn: dict[str, tuple[tuple[object, ...], list[Line]]] = {}

    # What another timeline shows otherwise

    @property
    def runs(self) -> tuple[DrawnRun, ...]:
        """One below the other in every lane, on one axis."""
        return (DrawnRun("", self.view.present.ladder),)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return lanes(self.view)

    def extent(self) -> tuple[float, float]:
        """First and last moment that there is anything of."""
        return self.view.present.extent()

    def put(self, at_s: float) -> None:
        """Put the cursor there; beyond the newest it is at the end again."""
        first_s, end_s = self.extent()
        self.view.cursor_s = None if at_s >= end_s else max(at_s, first_s)

    def letters(self, grid: Grid) -> dict[int, str]:
        """Marks of columns that are in no record."""
        return {}

    # What is in sight

    @property
    def range_s(self) -> float | None:
        """The chosen range; None where all is in sight."""
        range_s = RANGES_S[self.range_index]
        begin_s, end_s = self.extent()
        whole = self.view.replay is not None and range_s is not None and range_s >= end_s - begin_s
        return None if whole else range_s

    @property
    def span(self) -> tuple[float, float]:
        """The seconds in sight: up to the newest, or those around the cursor or a pinned step."""
        (begin_s, end_s), range_s = self.extent(), self.range_s
        wanted_s = self.view.cursor_s if self.view.cursor_s is not None else self.view.axis_s
        if self.view.replay is not None:  # what is to come is in sight, too: a page at a time
            return (begin_s, end_s) if range_s is None else self._page(begin_s, wanted_s, range_s)
        latest_s = min(end_s, max(self.view.edge_s, wanted_s))
        if range_s is None:
            return begin_s, latest_s
        if wanted_s < latest_s - range_s:
            latest_s = wanted_s + range_s / 2
        return latest_s - range_s, latest_s

    @staticmethod
    def _page(begin_s: float, at_s: float, range_s: float) -> tuple[float, float]:
        """The range that holds a moment of a recording; pages begin where the recording does."""
        first_s = begin_s + max(0.0, (at_s - begin_s) // range_s) * range_s
        return first_s, first_s + range_s

    def grid(self, width: int) -> Grid:
        """The columns in sight: as coarse as the run needs of which the least is kept."""
        span, cells = self.span, plot_width(width)
        return max(run.ladder.grid(*span, cells) for run in self.runs)

    @staticmethod
    def filled(ladder: Ladder, grid: Grid) -> list[Bucket | None]:
        """Columns of a grid, a step in each column that it lasts through."""
        found = ladder.fill(grid)
        later: Bucket | None = None
        for index in range(len(found) - 1, -1, -1):
            if found[index] is not None:
                later = found[index]
            elif later is not None and later.begin_s < grid.begin_s + (index + 1) * grid.column_s:
                found[index] = later
        return found

    def cursor_column(self, grid: Grid) -> int:
        """The cursor's place among the columns."""
        at_s = self.view.cursor_s
        if at_s is None:
            pinned = self.view.pinned is not None or self.view.replay is not None
            at_s = self.view.axis_s if pinned else None
        return grid.num - 1 if at_s is None else max(0, min(grid.num - 1, grid.column(at_s)))

    # Keys

    def move(self, columns: int, width: int) -> None:
        """Move the cursor by so many columns."""
        grid = self.grid(width)
        self.put(grid.begin_s + (self.cursor_column(grid) + columns + 0.5) * grid.column_s)

    def point(self, x: int, width: int) -> None:
        """Put the cursor where the mouse was pressed."""
        grid = self.grid(width)
        index = x - LABEL - plot_width(width) + grid.num
        if 0 <= index < grid.num:
            self.put(grid.begin_s + (index + 0.5) * grid.column_s)

    def resize(self, direction: int) -> None:
        """A longer (+1) or shorter (-1) range."""
        before = self.range_s
        while 0 <= self.range_index + direction < len(RANGES_S) and self.range_s == before:
            self.range_index += direction

    def show_all(self) -> None:
        self.range_index = len(RANGES_S) - 1

    def worst_seq(self, width: int) -> int | None:
        """The seq of the longest step in the cursor's column; None where none ended."""
        grid = self.grid(width)
        bucket = self.filled(self.runs[0].ladder, grid)[self.cursor_column(grid)] if grid.num else None
        return bucket.slowest if bucket is not None and bucket.slowest != NO_STEP else None

    # Drawing

    def headline(self, width: int) -> Pieces:
        """Range, length of a column, and the cursor's place."""
        range_s = self.range_s
        pieces: Pieces = [("all" if range_s is None else text.duration(range_s).replace(".0s", " s"), "text")]
        pieces.append((f"{text.ms_unit(self.grid(width).column_s)}/column", "muted"))
        if self.view.cursor_s is not None:
            ago_s = (
                self.view.axis_s - self.view.cursor_s
            )  # before what is shown, which stands still in a paused view
            where = f"{text.duration(abs(ago_s))} {'ahead' if ago_s < 0 else 'ago'}"
            pieces.append((f"cursor {where}", "accent"))
        return pieces

    def lines(self, width: int, height: int) -> list[Line]:
        """All lanes, and under them what happened, where there is room for that."""
        grid, runs, cells = self.grid(width), self.runs, plot_width(width)
        found = [self.filled(run.ladder, grid) for run in runs]
        cursor = self.cursor_column(grid)
        marks = len(runs) if height >= LEAST_HEIGHT else 0
        shown = self.lanes
        drawn: list[Line] = []
        for lane, rows in zip(shown, _rows(shown, (height - marks) // len(runs)), strict=True):
            if rows:
                drawn += self._lane(lane, found, cursor, cells, rows)
        letters = self.letters(grid)
        for run, buckets in zip(runs, found, strict=True) if marks else ():
            drawn.append(self._marks(run.name or "marks", buckets, letters, cursor, cells))
        return drawn

    def _lane(self, lane: Lane, found: list[list[Bucket | None]], cursor: int, width: int, rows: int) -> list[Line]:
        """A lane's rows of every run, all to the same scale."""
        none = (0.0,) * len(lane.layers)
        name = lane.name
        drawn = [
            [none if bucket is None else bucket.drawn.get(name) or _parts(lane, bucket) for bucket in buckets]
            for buckets in found
        ]
        palette, top = self.view.palette, lane.top or 1.0
        if name == "tokens":
            top = max(top, *(bucket.budget for buckets in found for bucket in buckets if bucket is not None), 1)
        names = [run.name for run in self.runs]
        key = (names, drawn, top, lane.limit, cursor, width, rows, palette, self.view.glyphs)
        if self._drawn.get(name, ((), []))[0] != key:
            self._drawn[name] = key, self._rows_of(lane, drawn, top, cursor, width, rows)
        lines = [line.copy() for line in self._drawn[name][1]]
        for first, buckets in zip(lines[::rows], found, strict=True):
            value = text.NONE if not buckets or (bucket := buckets[cursor]) is None else lane.value(bucket)
            first.add(value, palette["text"])
        return lines

    def _rows_of(
        self, lane: Lane, drawn: list[list[Parts]], top: float, cursor: int, width: int, rows: int
    ) -> list[Line]:
        """A lane's rows of every run without the values beside them."""
        parts = [np.array(columns, dtype=np.float64).reshape(len(columns), len(lane.layers)) for columns in drawn]
        if lane.top is not None:
            top = max(top, *(float(part.sum(axis=1).max(initial=0.0)) for part in parts))
        lines = []
        for place, (run, part) in enumerate(zip(self.runs, parts, strict=True)):
            label = self._label(run.name) if place else self._label(lane.name, lane.scale(top))
            for row, plot in enumerate(self._plot(lane, part / top, lane.limit and lane.limit / top, rows)):
                lines.append(self._framed(Line() if row else label, plot, len(part), cursor, width))
        return lines

    def _label(self, name: str, scale: str = "") -> Line:
        palette = self.view.palette
        line = Line().add(f"{name:<{LABEL - len(scale) - 1}}", palette["text"] + (BOLD if scale else LIGHT))
        return line.add(scale, palette["faint"])

    def _framed(self, label: Line, plot: Line, num: int, cursor: int, width: int) -> Line:
        """One row: label, columns at the right of their room, and the edge that values follow."""
        palette, edge = self.view.palette, self.view.glyphs.column
        line = Line().extend(label.pieces).pad(LABEL - 1, palette["text"]).add(edge, palette["rule"])
        line.pad(LABEL + width - num, palette["text"]).extend(plot.restyled(cursor, REVERSED))
        return line.add(edge, palette["rule"])

    def _plot(self, lane: Lane, shares: npt.NDArray[np.float64], limit: float | None, rows: int) -> list[Line]:
        """The columns of one run, with the line of the limit where nothing is drawn."""
        if not len(shares):
            return [Line()] * rows
        layers = tuple(
            Layer(role, " " if role in ("accent", "unused") else letter, glyph)
            for role, letter, glyph in lane.layers
        )
        drawn = draw_columns(shares, rows, layers, self.view.palette, self.view.glyphs)
        if limit is not None and limit < 1 and rows > 1:
            row = min(rows - 1, int(limit * rows))
            drawn[rows - 1 - row] = self._limited(drawn[rows - 1 - row], shares.sum(axis=1) * rows <= row)
        return drawn

    def _limited(self, plot: Line, free: npt.NDArray[np.bool_]) -> Line:
        """A row of a lane with the line of its limit where nothing is drawn."""
        glyph, style = self.view.glyphs.slo, self.view.palette["warn"]
        cells = [(char, own) for piece, own in plot.pieces for char in piece]
        cells = [(glyph, style) if blank else cell for cell, blank in zip(cells, free.tolist(), strict=True)]
        return Line().cells(*zip(*cells, strict=True))

    def _marks(
        self, name: str, found: list[Bucket | None], letters: dict[int, str], cursor: int, width: int
    ) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        marks = ["" if bucket is None else next(filter(bucket.marks.get, MARKS), "") for bucket in found]
        marks = [letters.get(index, mark) for index, mark in enumerate(marks)]
        colours = {mark: palette[role] for mark, role in MARKS.items()} | {"": palette["rule"]}
        chars, styles = [mark or glyphs.rule for mark in marks], [colours[mark] for mark in marks]
        if marks and not marks[cursor]:
            chars[cursor], styles[cursor] = glyphs.up, palette["accent"]
        label = Line().add(name, palette["text"] + BOLD)
        return self._framed(label, Line().cells(chars, styles), len(found), cursor, width)


def plot_width(width: int) -> int:
    """Cells of a lane between its label and its value."""
    return max(1, width - LABEL - VALUE)


def _rows(shown: tuple[Lane, ...], height: int) -> list[int]:
    """Rows of each lane: one each, the step's last of all, then more by weight."""
    rows = [1] * len(shown)
    if height < len(shown):
        for name in ("GPU", "host", "step", "tokens", "ITL", "TTFT", "run/wait"):
            if sum(rows) > height:
                rows = [0 if lane.name == name else num for lane, num in zip(shown, rows, strict=True)]
    while sum(rows) < height:
        index = min(range(len(rows)), key=lambda at: (rows[at] / shown[at].weight, at))
        rows[index] += 1
    return rows
