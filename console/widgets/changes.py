"""Changes: what was changed and by whom, and what it did: the same figures before and after."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.knobs.comparison import BeforeAfter, Change, FigurePair, changes, compare
from schedtop.console.past import sample_sizes
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces

_ROLES = {"better": "ok", "worse": "breach", "no change": "muted"}


class ChangesPanel(Panel):
    NUMBER: ClassVar[int] = 9
    TITLE: ClassVar[str] = "Changes"
    HELP: ClassVar[str] = """\
Every change of a knob that is still remembered, newest first. Below them: figures of up to a minute before the
selected change beside up to a minute after it, neither reaching past another change. n are the samples; a median
needs 10, a p95 20, – stands for a figure of too few; a rate needs 10 s, its n are steps. Windows are of the
engine's clock, and what was sampled after a change may have been queued before it. Who still waits at the end of a
side is part of it: > is a lower bound, and cannot tell stands where bounds overlap. Where running requests get no token
in their steps (12% starve) or one waits for longer than the TTFT p95 (9.3s waiting), that stands in place of better.
Enter shows the change's step on Live."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.cursor = 0
        self._changes: list[Change] = []

    def headline(self) -> Pieces:
        return [(text.plural(len(self._changes), "change"), "text"), ("before and after", "muted")]

    def lines(self, width: int, height: int) -> list[Line]:
        self._changes = changes(self.view.history)
        return super().lines(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        if not self._changes:
            return [Line().add(" No changes yet", palette["muted"])]
        self.cursor = max(0, min(self.cursor, len(self._changes) - 1))
        box = self._box(self._changes[self.cursor], width)
        room = max(1, min(len(self._changes), height - len(box)))
        top = max(0, self.cursor - room + 1)
        listed = [
            self._line(change, index == self.cursor, width)
            for index, change in enumerate(self._changes[top : top + room], start=top)
        ]
        return [*listed, *box]

    def _line(self, change: Change, selected: bool, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        under = "cursor" if selected else "background"
        line = Line().add(glyphs.cursor if selected else " ", palette.on("accent", under))
        line.add(f"step {change.step:<8} ", palette.on("muted", under))
        words = ", ".join(
            f"{text.clean(knob.name)} {text.value(knob.old)}→{text.value(knob.new)}" for knob in change.knobs
        )
        line.add(words, palette.on("text", under))
        if change.by:
            by = f"  by {text.clean(change.by)}"
            line.add(text.fit(by, min(cell_len(by), width - line.length)), palette.on("muted", under))
        return line.pad(width, palette.on("text", under))

    def _box(self, change: Change, width: int) -> list[Line]:
        palette = self.view.palette
        found = compare(self.view.history, change, self._changes)
        muted = palette.on("muted", "surface")
        head = Line().add(
            f"   {'':14}{self._side('before', found.before_s):>17}{self._side('after', found.after_s):>18}", muted
        )
        return [head.pad(width, muted), *(self._figure(figure, found) for figure in found.figures)]

    @staticmethod
    def _side(word: str, seconds: float) -> str:
        return f"{word} {seconds:.0f} s"

    def _figure(self, figure: FigurePair, found: BeforeAfter) -> Line:
        palette = self.view.palette
        line = Line().add(f"   {figure.name:<14}", palette["text"])
        for value, n, span_s, is_bound in (
            (figure.before, figure.before_n, found.before_s, figure.bounds[0]),
            (figure.after, figure.after_n, found.after_s, figure.bounds[1]),
        ):
            mark = ">" if is_bound and value is not None else ""
            line.add(
                f"{mark + _value(figure, value, n, span_s):>12}", palette["text" if value is not None else "muted"]
            )
            # Steps beside a rate that is not known would be taken for the rate.
            count = f" n {text.count(n)}" if value is not None or figure.share is not None else ""
            line.add(f"{count:<8}", palette["muted"])
        verdict, ratio = figure.verdict, figure.ratio
        style = palette[_ROLES.get(verdict, "warn")]
        known = ratio is not None and verdict not in ("", "no change", "cannot tell")
        line.add((f" {ratio:+.0%} " if known else "").rjust(8), style + Style(bold=True))
        return line.add(verdict, style)

    def selected(self) -> Change | None:
        return self._changes[self.cursor] if self.cursor < len(self._changes) else None

    def move(self, lines: int) -> None:
        self.cursor = max(0, min(len(self._changes) - 1, self.cursor + lines))

    def copied(self) -> str:
        change = self.selected()
        if change is None:
            return ""
        return "; ".join(f"step {change.step} {knob.name} {knob.old} -> {knob.new}" for knob in change.knobs)

    def click_line(self, y: int, x: int) -> None:
        if y < len(self._changes):
            self.cursor = y


def _value(figure: FigurePair, value: float | None, n: int, span_s: float) -> str:
    if value is not None:
        return f"{value:.1f}" if value < 1000 else text.count(value)
    if figure.share is not None:
        return sample_sizes.LACK if n < sample_sizes.needed(figure.share) else text.UNKNOWN
    return f"needs {sample_sizes.LEAST_S:.0f} s" if span_s < sample_sizes.LEAST_S else text.UNKNOWN
