"""The timeline: lanes over one time axis with one cursor through all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import Layer, draw_columns
from schedtop.console.past.ladder import Bucket, quantile
from schedtop.console.view import View
from schedtop.console.widgets.panel import Pieces
from schedtop.engine.contract.latencies.cohort import Bounded

RANGES_S: tuple[float | None, ...] = (10.0, 60.0, 300.0, 3600.0, None)
"""What + and - choose from; None is all."""
LABEL, VALUE = 13, 10
LEAST_WIDTH, LEAST_HEIGHT = 60, 7

_MARKS = {"K": "accent", "X": "breach", "V": "breach", "A": "ok"}
"""Letters and colours; where several fall together the first of these is shown."""

Parts = tuple[float, ...]


class Lane(NamedTuple):
    """One figure over time. `parts` of a column are stacked from below; `value` is what stands beside the lane.

    `top` is what the full height stands for, at least; None: a share, whose full height is 1. A line
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


def _parts(lane: Lane, bucket: Bucket) -> Parts:
    """Worked out once for a column that stays as it is."""
    found = bucket.drawn.get(lane.name)
    if found is None:
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
"""Only where the engine has told of one."""


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


def _watermark(view: View) -> float | None:
    """The share of the pool that may be in use before admission stops; None where all of it may."""
    record = view.moment.record
    if record is None or not record.blocks.watermark:
        return None
    blocks = record.blocks
    return 1.0 - blocks.watermark / (blocks.held + blocks.shared + blocks.cached_free + blocks.empty)


def lanes(view: View) -> tuple[Lane, ...]:
    """The lanes from top to bottom."""
    options = view.options

    def late(seconds: float, slo_s: float | None) -> str:
        return (
            text.ms_unit(seconds) + ("!" if slo_s is not None and seconds > slo_s else "") if seconds else text.NONE
        )

    def bounded(p95: Bounded | None, slo_s: float | None) -> str:
        return text.NONE if p95 is None else (">" if p95.is_bound else "") + late(p95.least, slo_s)

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
        Lane(
            "TTFT",
            _DURATION,
            lambda bucket: _capped(_p95_s(bucket, "ttft"), _longest_ttft_s(bucket), options.ttft_slo_s),
            lambda bucket: bounded(bucket.p95("ttft"), options.ttft_slo_s),
            text.ms_unit,
            1e-3,
            weight=2,
            limit=options.ttft_slo_s,
        ),
        Lane(
            "ITL",
            _DURATION,
            lambda bucket: _capped(_p95_s(bucket, "itl"), _longest_itl_s(bucket), options.itl_slo_s),
            lambda bucket: bounded(bucket.p95("itl"), options.itl_slo_s),
            text.ms_unit,
            1e-3,
            weight=2,
            limit=options.itl_slo_s,
        ),
        HOST,
        *((GPU,) if view.history.ladder.knows_gpu else ()),
    )


class Timeline:
    """What is in sight of the past; the cursor is the view's."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.range_index = 1

    @property
    def span(self) -> tuple[float, float]:
        """The seconds in sight: up to the newest, or those around the cursor or a pinned step."""
        history, range_s = self.view.history, RANGES_S[self.range_index]
        begin_s, end_s = history.extent()
        if range_s is None:
            return begin_s, end_s
        wanted_s = self.view.cursor_s if self.view.cursor_s is not None else self.view.moment.clock_s
        if self.view.replay is not None:  # what is to come is in sight, too: a page at a time
            return self._page(begin_s, wanted_s, range_s)
        latest_s = min(end_s, max(history.live.clock_s, wanted_s))
        if wanted_s < latest_s - range_s:
            latest_s = wanted_s + range_s / 2
        return latest_s - range_s, latest_s

    @staticmethod
    def _page(begin_s: float, at_s: float, range_s: float) -> tuple[float, float]:
        """The range that holds a moment of a recording; pages begin where the recording does."""
        first_s = begin_s + max(0.0, (at_s - begin_s) // range_s) * range_s
        return first_s, first_s + range_s

    def columns(self, width: int) -> tuple[list[Bucket | None], float, float]:
        """Columns in sight, a step in each column that it lasts through; when they begin and how long they are."""
        found, begin_s, length_s = self.view.history.ladder.columns(*self.span, width)
        later: Bucket | None = None
        for index in range(len(found) - 1, -1, -1):
            if found[index] is not None:
                later = found[index]
            elif later is not None and later.begin_s < begin_s + (index + 1) * length_s:
                found[index] = later
        return found, begin_s, length_s

    def cursor_column(self, num: int, begin_s: float, length_s: float) -> int:
        """Where the cursor stands among the columns."""
        at_s = self.view.cursor_s
        if at_s is None:
            pinned = self.view.pinned is not None or self.view.replay is not None
            at_s = self.view.moment.clock_s if pinned else None
        return num - 1 if at_s is None else max(0, min(num - 1, int((at_s - begin_s) // length_s)))

    # Keys

    def move(self, columns: int, width: int) -> None:
        """Move the cursor by so many columns; beyond the newest it is at the end again."""
        found, begin_s, length_s = self.columns(plot_width(width))
        if not found:
            return
        index = self.cursor_column(len(found), begin_s, length_s) + columns
        at_s = begin_s + (index + 0.5) * length_s
        first_s, end_s = self.view.history.extent()
        self.view.cursor_s = None if at_s >= end_s else max(at_s, first_s)

    def point(self, x: int, width: int) -> None:
        """Put the cursor where the mouse was pressed."""
        found, begin_s, length_s = self.columns(plot_width(width))
        index = x - LABEL - plot_width(width) + len(found)
        if 0 <= index < len(found):
            self.view.cursor_s = begin_s + (index + 0.5) * length_s

    def resize(self, direction: int) -> None:
        """A longer (+1) or shorter (-1) range."""
        self.range_index = max(0, min(len(RANGES_S) - 1, self.range_index + direction))

    def worst_seq(self, width: int) -> int | None:
        """The seq of the longest step in the cursor's column; None where none ended."""
        found, begin_s, length_s = self.columns(plot_width(width))
        bucket = found[self.cursor_column(len(found), begin_s, length_s)] if found else None
        return bucket.slowest if bucket is not None and bucket.slowest >= 0 else None

    # Drawing

    def headline(self, width: int) -> Pieces:
        """Range, length of a column, and where the cursor stands."""
        range_s = RANGES_S[self.range_index]
        pieces: Pieces = [("all" if range_s is None else text.duration(range_s).replace(".0s", " s"), "text")]
        pieces.append((f"{text.ms_unit(self.columns(plot_width(width))[2])}/column", "muted"))
        if self.view.cursor_s is not None:
            pieces.append(
                (f"cursor {text.duration(self.view.history.live.clock_s - self.view.cursor_s)} ago", "accent")
            )
        return pieces

    def lines(self, width: int, height: int) -> list[Line]:
        """All lanes, and under them what happened, where there is room for that."""
        found, begin_s, length_s = self.columns(plot_width(width))
        cursor = self.cursor_column(len(found), begin_s, length_s)
        shown = lanes(self.view)
        drawn: list[Line] = []
        marks = height >= LEAST_HEIGHT
        for lane, rows in zip(shown, _rows(shown, height - marks), strict=True):
            if rows:
                drawn += self._lane(lane, found, cursor, plot_width(width), rows)
        if marks:
            drawn.append(self._marks(found, cursor, plot_width(width)))
        return drawn

    def _lane(self, lane: Lane, found: list[Bucket | None], cursor: int, width: int, rows: int) -> list[Line]:
        palette = self.view.palette
        none = (0.0,) * len(lane.layers)
        parts = np.array([none if bucket is None else _parts(lane, bucket) for bucket in found], dtype=np.float64)
        parts = parts.reshape(len(found), len(lane.layers))
        top = 1.0 if lane.top is None else max(lane.top, float(parts.sum(axis=1).max(initial=0.0)))
        if lane.name == "tokens":
            top = max(top, *(bucket.budget for bucket in found if bucket is not None), 1)
        layers = tuple(
            Layer(role, " " if role in ("accent", "unused") else letter, glyph)
            for role, letter, glyph in lane.layers
        )
        drawn = draw_columns(parts / top, rows, layers, palette, self.view.glyphs) if found else [Line()] * rows
        if lane.limit is not None and lane.limit < top and rows > 1:
            row = min(rows - 1, int(lane.limit / top * rows))
            drawn[rows - 1 - row] = self._limited(drawn[rows - 1 - row], parts.sum(axis=1) / top * rows <= row)
        bucket = found[cursor] if found else None
        lines = []
        for row, plot in enumerate(drawn):
            line = Line()
            if row == 0:
                scale = lane.scale(top)
                line.add(f"{lane.name:<{LABEL - len(scale) - 1}}", palette["text"] + Style(bold=True))
                line.add(scale, palette["faint"])
            line.pad(LABEL - 1, palette["text"]).add(self.view.glyphs.column, palette["rule"])
            line.pad(LABEL + width - len(found), palette["text"]).extend(plot.restyled(cursor, Style(reverse=True)))
            line.add(self.view.glyphs.column, palette["rule"])
            if row == 0:
                line.add(text.NONE if bucket is None else lane.value(bucket), palette["text"])
            lines.append(line)
        return lines

    def _limited(self, plot: Line, free: npt.NDArray[np.bool_]) -> Line:
        """A row of a lane with the line of its limit where nothing is drawn."""
        glyph, style = self.view.glyphs.slo, self.view.palette["warn"]
        cells = [(char, own) for piece, own in plot.pieces for char in piece]
        cells = [(glyph, style) if blank else cell for cell, blank in zip(cells, free.tolist(), strict=True)]
        return Line().cells(*zip(*cells, strict=True))

    def _marks(self, found: list[Bucket | None], cursor: int, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        chars, styles = [], []
        for index, bucket in enumerate(found):
            mark = next((mark for mark in _MARKS if bucket is not None and bucket.marks[mark]), "")
            chosen = index == cursor
            chars.append(mark or (glyphs.up if chosen else glyphs.rule))
            style = palette[_MARKS[mark]] if mark else palette["accent" if chosen else "rule"]
            styles.append(style + Style(reverse=True) if chosen else style)
        line = Line().add("marks", palette["text"] + Style(bold=True)).pad(LABEL - 1, palette["text"])
        line.add(glyphs.column, palette["rule"]).pad(LABEL + width - len(found), palette["text"])
        return line.cells(chars, styles).add(glyphs.column, palette["rule"])


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
