"""The two panels of the Explain screen: findings at the left, why at the right."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.explain.catalogue import MIN_STEPS
from schedtop.console.explain.finding import Finding, Severity, StepRange, seconds, some
from schedtop.console.explain.log import LogEntry
from schedtop.console.explain.page import extent_words
from schedtop.console.explain.tries import Tried, TriedValues, Tries
from schedtop.console.explain.watch import Watch
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces

if TYPE_CHECKING:
    from textual.events import Focus

MARKS = {Severity.SEVERE: "!!", Severity.WARNING: "! ", Severity.NOTICE: "i "}
ROLES = {Severity.SEVERE: "breach", Severity.WARNING: "warn", Severity.NOTICE: "muted"}

_LINES_EACH = 2

Rows = list[tuple[Line, StepRange | Tried | None]]
"""Lines of the explanation, and the steps or the value each line shows."""

HELP = """\
  Findings    what the symptoms of the last 30 s say; those that held earlier stay below, greyed
  !! severe   work is lost or stuck       ! warning   requests are slower than need be       i notice
  Why         the causal chain: each line is the cause of the one above it
  Steps       what it rests on: Enter shows them in all panels of Live
  Try         values of the knobs that help, and what each would do in the next seconds, by forecast from the
              present state; the best first, none if none helps. Enter stages one
Nothing is shown below its threshold (docs/explain.md lists them); a healthy engine has no finding."""


class _ExplainPanel(Panel):
    HELP: ClassVar[str] = HELP

    def rule(self, width: int) -> Line:
        """As a panel's, without a number: digits belong to Live."""
        palette, glyphs = self.view.palette, self.view.glyphs
        rule = palette["accent" if self.active else "rule"]
        title = palette["text"] + Style(bold=True, reverse=self.active)
        line = Line().add(glyphs.rule, rule).add(self.TITLE, title)
        for piece, role in self.headline():
            line.add(f" {glyphs.rule} ", rule).add(piece, palette[role])
        return line.add(" ", rule).pad(width, rule, glyphs.rule)


class FindingsPanel(_ExplainPanel):
    """The list. The selection stays with its finding while the order changes."""

    TITLE: ClassVar[str] = "Findings"

    def __init__(self, view: View, explain: Watch, *, id: str) -> None:
        super().__init__(view, id=id)
        self.explain = explain
        self.top = 0
        self._chosen: str | None = None

    @property
    def cursor(self) -> int:
        ids = [entry.finding.id for entry in self.explain.entries]
        return ids.index(self._chosen) if self._chosen in ids else 0

    def selected(self) -> LogEntry | None:
        return self.explain.entries[self.cursor] if self.explain.entries else None

    def headline(self) -> Pieces:
        earlier = len(self.explain.entries) - self.explain.num_active
        pieces = [
            (f"{self.explain.num_active} now", "text"),
            *([(f"{earlier} earlier", "muted")] if earlier else []),
        ]
        return pieces if self.view.history is self.view.present else [*pieces, ("not of the run before", "warn")]

    def body(self, width: int, height: int) -> list[Line]:
        shown, cursor = max(1, height // _LINES_EACH), self.cursor
        self.top = max(min(self.top, cursor), cursor - shown + 1, 0)
        lines = []
        for index, entry in enumerate(self.explain.entries[self.top : self.top + shown], start=self.top):
            lines += self._entry(entry, index == cursor, width)
        return lines or [Line().add(" none", self.view.palette["muted"])]

    def _entry(self, entry: LogEntry, selected: bool, width: int) -> list[Line]:
        palette, finding = self.view.palette, entry.shown
        under = "cursor" if selected else "background"
        role = ROLES[finding.severity] if entry.active else "muted"
        first = Line().add(self.view.glyphs.cursor if selected else " ", palette.on("accent", under))
        first.add(MARKS[finding.severity], palette.on(role, under) + Style(bold=True))
        first.add(
            f" {finding.id}", palette.on("text" if entry.active else "muted", under) + Style(bold=entry.active)
        )
        second = Line().add(f"    {_when(entry)}", palette.on("muted", under))
        return [line.pad(width, palette.on("text", under)) for line in (first, second)]

    def move(self, lines: int) -> None:
        entries = self.explain.entries
        if entries:
            self.choose(entries[max(0, min(len(entries) - 1, self.cursor + lines))].finding.id)

    def choose(self, id: str) -> None:
        """Select a finding."""
        self._chosen = id

    def click_line(self, y: int, x: int) -> None:
        self.move(self.top + y // _LINES_EACH - self.cursor)

    def copied(self) -> str:
        entry = self.selected()
        return "" if entry is None else f"{entry.shown.id}: {entry.shown.title}"


class WhyPanel(_ExplainPanel):
    """The selected finding in full; a cursor over the lines that lead somewhere: steps to show, values to stage."""

    TITLE: ClassVar[str] = "Why"

    def __init__(self, view: View, findings: FindingsPanel, tries: Tries, *, id: str) -> None:
        super().__init__(view, id=id)
        self.findings, self.tries = findings, tries
        self.top = 0
        self.line = 0
        self._seeks = False
        self._rows: Rows = []
        self._drawn: str | None = None

    def body(self, width: int, height: int) -> list[Line]:
        entry = self.findings.selected()
        self._rows = self._nothing(width) if entry is None else self._explain(entry, width)
        name = entry.finding.id if entry is not None else None
        if name != self._drawn:
            self._drawn, self.top, self.line, self._seeks = name, 0, self._first_steps(), True
        stops = self._stops()
        if self.line not in stops:  # values that were worked out have moved the others
            self.line = min(stops, key=lambda at: abs(at - self.line), default=0)
        if self.active and self._seeks:
            self.top, self._seeks = max(min(self.top, self.line), self.line - height + 1), False
        self.top = max(0, min(self.top, len(self._rows) - height))
        return [self._row(index, width) for index in range(self.top, min(self.top + height, len(self._rows)))]

    def headline(self) -> Pieces:
        below = len(self._rows) - self.top - max(1, self.size.height - 1)
        return [(f"{below} more lines", "muted")] if below > 0 else []

    def steps(self) -> StepRange | None:
        """The steps under the cursor."""
        found = self._rows[self.line][1] if self.line < len(self._rows) else None
        return found if isinstance(found, StepRange) else None

    def tried(self) -> Tried | None:
        """The value under the cursor."""
        found = self._rows[self.line][1] if self.line < len(self._rows) else None
        return found if isinstance(found, Tried) else None

    def to_steps(self) -> None:
        """Put the cursor on the first steps."""
        self.line, self._seeks = self._first_steps(), True

    def _first_steps(self) -> int:
        return next((index for index, (_, steps) in enumerate(self._rows) if isinstance(steps, StepRange)), 0)

    def _stops(self) -> list[int]:
        """Lines that Enter does something with; of a value that takes several the first."""
        leads = [None, *(lead for _, lead in self._rows)]
        return [at for at, lead in enumerate(leads[1:]) if lead is not None and lead is not leads[at]]

    def _row(self, index: int, width: int) -> Line:
        line, steps = self._rows[index]
        palette = self.view.palette
        selected = self.active and index == self.line and steps is not None
        drawn = Line().add(self.view.glyphs.cursor if selected else " ", palette["accent"])
        if selected:
            words = "".join(piece for piece, _ in line.pieces)
            return drawn.add(words, palette.on("text", "cursor")).pad(width, palette.on("text", "cursor"))
        return drawn.extend(line.pieces)

    def _nothing(self, width: int) -> Rows:
        facts = self.findings.explain.log.diagnosis.facts
        words = "Nothing found: no symptom passed its threshold."
        if facts.num_steps < MIN_STEPS.value:
            words = f"Not enough steps yet: {facts.num_steps}."
        said = f"{some(facts.num_steps, 'step')} so far, the newest 30 s are looked at once a second."
        return [*self._wrap(words, width, "text", bold=True), *self._wrap(said, width, "muted")]

    def _explain(self, entry: LogEntry, width: int) -> Rows:
        finding = entry.shown
        rows = self._wrap(finding.title, width, ROLES[finding.severity], bold=True)
        rows += self._wrap(f"{finding.severity.word}, {_when(entry)}; {extent_words(finding)}", width, "muted")
        rows += [*self._space(), *self._chain(finding, width), *self._space()]
        if finding.steps:
            rows += self._head("Steps", "Enter shows them in Live")
            rows += [row for steps in finding.steps for row in self._steps(steps, width)]
            rows += self._space()
        return rows + self._try(entry, width)

    def _try(self, entry: LogEntry, width: int) -> Rows:
        """Measured values where a forecast can be made, then what no forecast can show."""
        finding = entry.shown
        rows: Rows = []
        measurable = {advice.knob for advice in finding.advice if advice.live}
        if entry.active and measurable and self.tries.can_try:
            rows += self._measured(self.tries.found(finding), self.tries.left(finding), width)
        else:
            measurable = set()
        others = [advice for advice in finding.advice if advice.knob not in measurable]
        if others and not rows:
            rows += self._head("Try", "")
        for advice in others:
            rows += self._wrap(advice.title, width, "text", "  ", bold=True)
        return rows

    def _measured(self, outcome: TriedValues | None, left: int, width: int) -> Rows:
        rows = self._head("Try", "the next seconds by forecast; Enter stages a value")
        if outcome is None:
            return rows + self._wrap("working out what values would do", width, "muted", "  ")
        if outcome.failed:
            return rows + self._wrap(f"no forecast: {outcome.failed}", width, "muted", "  ")
        for tried in outcome.helpful:
            lines = self._wrap(f"{tried.title}: {tried.words}", width, "text", "  ")
            rows += [(line, tried) for line, _ in lines]
        if left:
            rows += self._wrap(f"working out {text.plural(left, 'more value')}", width, "muted", "  ")
        elif not outcome.helpful:
            rows += self._wrap(f"none of these helps: {', '.join(outcome.tried)}", width, "warn", "  ")
        return rows

    def _chain(self, finding: Finding, width: int) -> Rows:
        rows = self._head("Why", "each line is the cause of the one above")
        elbow = "`-" if self.view.options.ascii else "└─"
        for depth, link in enumerate(finding.links):
            indent = "  " + "   " * max(0, depth - 1) + (f"{elbow} " if depth else "")
            rows += self._wrap(link.words, width, "text", indent)
        return rows

    def _steps(self, steps: StepRange, width: int) -> Rows:
        palette = self.view.palette
        line = Line().add(f"  {steps.label}", palette["accent"])
        if steps.words:
            line.add(f"  {steps.words}", palette["text"])
        return [(line, steps)]

    def _head(self, word: str, note: str) -> Rows:
        palette = self.view.palette
        line = Line().add(word, palette["text"] + Style(bold=True)).add(f"  {note}", palette["muted"])
        return [(line, None)]

    def _space(self) -> Rows:
        return [(Line(), None)]

    def _wrap(self, words: str, width: int, role: str, indent: str = "", bold: bool = False) -> Rows:
        style = self.view.palette[role] + Style(bold=bold)
        wrapped = textwrap.wrap(
            words, max(10, width - 2), initial_indent=indent, subsequent_indent=" " * len(indent)
        )
        return [(Line().add(part, style), None) for part in wrapped]

    def on_focus(self, event: Focus) -> None:
        self._seeks = True

    def move(self, lines: int) -> None:
        """To the next line that leads somewhere; where none does in that direction, the text moves."""
        height = max(1, self.size.height - 1)
        sight = range(self.top, self.top + height)
        begin = self.line if self.line in sight else sight[0] - 1 if lines > 0 else sight[-1] + 1
        onward = [at for at in self._stops() if (at - begin) * lines > 0]
        if abs(lines) == 1 and onward:
            self.line, self._seeks = min(onward, key=lambda at: abs(at - begin)), True
            return
        self.top = max(0, min(len(self._rows) - height, self.top + lines))
        seen = [at for at in self._stops() if at in range(self.top, self.top + height)]
        if seen and abs(lines) > 1:
            self.line = seen[-1] if lines > 0 else seen[0]

    def click_line(self, y: int, x: int) -> None:
        self.line = self.top + y

    def copied(self) -> str:
        """The whole explanation."""
        return "\n".join("".join(piece for piece, _ in line.pieces).rstrip() for line, _ in self._rows)


def _when(entry: LogEntry) -> str:
    """When it held: now and since when, or the last time."""
    if not entry.episodes:
        return ""
    last = entry.episodes[-1]
    if entry.active:
        return f"now, since {seconds(last.from_s)}"
    if seconds(last.from_s) == seconds(last.to_s):
        return f"held at {seconds(last.to_s)}"
    return f"held {seconds(last.from_s)} to {seconds(last.to_s)}"
