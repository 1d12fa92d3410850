"""[4] Latency: first-token and inter-token times over a window, against their SLOs."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from schedtop.console import text
from schedtop.console.latency import Samples, merge
from schedtop.console.line import Line
from schedtop.console.view import WINDOWS_S
from schedtop.console.widgets.panel import Panel, Pieces

QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


class LatencyPanel(Panel):
    NUMBER: ClassVar[int] = 4
    TITLE: ClassVar[str] = "Latency"
    HELP: ClassVar[str] = """\
TTFT  first output token - arrival, waiting included; one sample per request.
ITL   gap between two deliveries to a client (a verified burst of drafts is one); one sample per gap.
Percentiles interpolate linearly, over the window named in the title; n is how many samples they rest on.
! marks a figure past its SLO; the share beside the SLO is of samples that met it.
Each column of the graph is the p95 of its part of the window; the dashed line is the SLO.
+ and - choose a longer or shorter window."""

    def headline(self) -> Pieces:
        return [(f"window {text.duration(self.view.window_s).replace('.0s', 's')}", "text")]

    def body(self, width: int, height: int) -> list[Line]:
        view = self.view
        slo = {"ttft": view.options.ttft_slo_s, "itl": view.options.itl_slo_s}
        compact = height < 6
        lines: list[Line] = []
        for index, kind in enumerate(("ttft", "itl")):
            if len(lines) >= height:
                break
            spare = (height - 2) // 2 + (1 if index == 0 and height % 2 else 0)
            num_columns = min(width, 60)
            columns = view.history.latency_columns(kind, view.moment, view.window_s, num_columns)
            whole = merge(columns)
            line = self._figures(kind, whole, slo[kind], short=width < 54)
            if compact:
                room = width - line.length - 2
                if room >= 10:
                    columns = view.history.latency_columns(kind, view.moment, view.window_s, min(room, 30))
                    graph = self._graph(columns, slo[kind], min(room, 30), 1)[0]
                    line.pad(width - graph.length, view.palette["text"]).extend(graph.pieces)
                lines.append(line)
                continue
            lines.append(line)
            lines += self._graph(columns, slo[kind], width, spare)
        return lines[:height]

    def _figures(self, kind: str, samples: Samples, slo_s: float | None, short: bool) -> Line:
        palette = self.view.palette
        line = Line().add(f"{kind.upper():4s}", palette["text"] + Style(bold=True))
        for share, name in QUANTILES:
            value = samples.quantile(share)
            late = slo_s is not None and value is not None and value > slo_s
            line.add(f" {name} ", palette["muted"])
            line.add(f"{text.ms(value)}{'!' if late else ''}", palette["breach" if late else "text"])
        line.add(" ms", palette["muted"]).add(f"  n {text.count(samples.n)}", palette["muted"])
        if slo_s is not None:
            met = text.share(samples.within(slo_s), samples.n)
            line.add("  " if short else "  SLO ", palette["muted"]).add(f"{text.ms(slo_s)}", palette["text"])
            line.add(f" {met}" + ("" if short or not samples.n else " ok"), palette["muted"])
        return line

    def _graph(self, columns: list[Samples], slo_s: float | None, width: int, rows: int) -> list[Line]:
        """The p95 of each column, `rows` lines high, scaled so that the SLO and the data are both in sight."""
        if rows < 1:
            return []
        palette, glyphs = self.view.palette, self.view.glyphs
        values = [samples.quantile(0.95) for samples in columns]
        wide = max(1, width // max(1, len(values)))
        top = max([value for value in values if value is not None] + [slo_s * 1.25 if slo_s else 0.0, 1e-6])
        levels = len(glyphs.spark)
        marks = rows * levels
        slo_row = min(rows - 1, int(slo_s / top * rows)) if slo_s else -1
        lines = []
        for row in range(rows - 1, -1, -1):
            chars: list[str] = []
            styles: list[Style] = []
            for value in values:
                char, role = " ", "muted"
                level = 0 if value is None else max(1, round(value / top * marks))
                if level > row * levels:
                    char = glyphs.spark[min(levels, level - row * levels) - 1]
                    late = slo_s is not None and value is not None and value > slo_s
                    role = "breach" if late else "accent"
                elif row == slo_row:
                    char, role = glyphs.slo, "warn"
                chars += [char] * wide
                styles += [palette[role] + _PLAIN] * wide
            lines.append(Line().pad(width - len(chars), palette["text"]).cells(chars, styles))
        return lines

    def resize_window(self, direction: int) -> None:
        """A longer (+1) or shorter (-1) window."""
        index = min(range(len(WINDOWS_S)), key=lambda i: abs(WINDOWS_S[i] - self.view.window_s)) + direction
        self.view.window_s = WINDOWS_S[min(max(index, 0), len(WINDOWS_S) - 1)]


_PLAIN = Style(bold=False, underline=False)
