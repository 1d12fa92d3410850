"""[6] Knobs: the limits that can be changed while the engine runs."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD
from schedtop.console.knobs.forecast import describe
from schedtop.console.knobs.staged import Staging
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.engine.contract.knobs import Knob


class KnobsPanel(Panel):
    NUMBER: ClassVar[int] = 6
    TITLE: ClassVar[str] = "Knobs"
    UNHURRIED: ClassVar[bool] = True
    BODY_TELLS_FOCUS: ClassVar[bool] = True
    HELP: ClassVar[str] = """\
Changes are staged first: + and - change the selected knob by one step, = types a value, Enter applies all staged
values together, Esc drops them. Nothing reaches the engine before Enter.
The engine checks staged values first; its answer appears below the list.
c applies on trial: the engine reverts the change unless you confirm it (c) in time, or at once when an SLO
given at the start breaks. r reverts it now. The engine does this even if this console is gone.
u stages the values before your last change, R those the engine started with; Enter then applies them.
A lower max_num_seqs stops no request: 16->12 draining 14 means 14 still run and two must finish first.
In a replay Enter runs the recording again with the staged values from the shown step on, b from its start; what
can only be set at start-up can be staged there too, for a re-run from the start.
`auto` lets the engine choose. The range at the right comes from the knob or from a start-up ceiling."""

    def __init__(self, view: View, staging: Staging, *, id: str) -> None:
        super().__init__(view, id=id)
        self.staging = staging
        self.cursor = 0
        self.top = 0

    def headline(self) -> Pieces:
        if self.view.replay is not None:
            return self._replay_headline()
        if self.view.options.read_only:
            return [("read-only", "warn")]
        if self.view.stale:
            return [("engine stopped", "warn")]
        if self.staging.sent_over is self.view.link:
            return [("sent, no answer yet", "warn")]
        if self.view.trial is not None:
            left_s = self.view.trial.left_s(self.view.now())
            return [
                (f"on trial: reverts in {left_s:.0f} s", "warn"),
                ("c confirms", "muted"),
                ("r reverts", "muted"),
            ]
        if self.staging.staged:
            return [
                (f"{len(self.staging.staged)} staged", "warn"),
                ("Enter applies", "muted"),
                ("Esc drops", "muted"),
            ]
        return [("nothing staged", "muted")]

    def _replay_headline(self) -> Pieces:
        if not self.staging.staged:
            return [("a recording: stage values for a re-run", "muted")]
        again = "Enter re-runs, b from the start"
        return [(f"{len(self.staging.staged)} staged", "warn"), (again, "muted"), ("Esc drops", "muted")]

    def body(self, width: int, height: int) -> list[Line]:
        live = self.staging.live_knobs()
        if not live:
            return [Line().add(" no knobs yet", self.view.palette["muted"])]
        self.cursor = max(0, min(self.cursor, len(live) - 1))
        notes = self._notes(live, width)[: max(0, height - 3)]
        fixed = self.staging.start_up_knobs()
        longest = max(30, *(len(knob.name) for knob in (*live, *(knob for knob, _ in fixed))))
        cells = min(longest, max(12, width - 26))  # all of the longest name, where the values leave so much
        rows = [self._line(knob, index, width, cells) for index, knob in enumerate(live)]
        rows += [self._start_up_line(knob, value, width, cells) for knob, value in fixed]
        room = height - len(notes)
        if len(rows) < room - 1:
            return [*rows, Line(), *notes]
        self.top = max(0, min(self.top, self.cursor, len(rows) - room))
        self.top = max(self.top, self.cursor - room + 1)
        shown = rows[self.top : self.top + room]
        return [*shown, *[Line() for _ in range(room - len(shown))], *notes]

    def _line(self, knob: Knob, index: int, width: int, name_width: int) -> Line:
        view, palette, staging = self.view, self.view.palette, self.staging
        selected = index == self.cursor and self.active
        under = "cursor" if selected else "background"
        line = Line().add(view.glyphs.cursor if selected else " ", palette.on("accent", under))
        line.add(text.fit(knob.name, name_width) + " ", palette.on("text", under))
        state = view.moment.state
        present = staging.value_in(state, knob.name)
        value = text.value(present)
        draining = staging.draining(knob.name, state)
        if knob.name in staging.staged:
            line.add(value, palette.on("muted", under)).add(view.glyphs.arrow, palette.on("muted", under))
            line.add(f"{text.value(staging.staged[knob.name])}*", palette.on("warn", under) + BOLD)
        else:
            line.add(value, palette.on("text", under) + BOLD)
            if draining is not None:
                line.add(f" draining {draining}", palette.on("warn", under))
        bounds = Line()
        launch = staging.launch_value(knob.name)
        if width >= 70 and launch != present:
            bounds.add(f"launch {text.value(launch)}   ", palette.on("muted", under))
        if width >= 70 and knob.unit:
            bounds.add(f"{knob.unit}   ", palette.on("faint", under))
        if self.view.replay is not None and not knob.live:
            bounds.add("from the start only   " if width >= 70 else "start ", palette.on("faint", under))
        bounds.add(f"{staging.range_of(knob):>10} ", palette.on("muted", under))
        line.right(width, bounds, palette.on("text", under))
        return line.pad(width, palette.on("text", under))

    def _start_up_line(self, knob: Knob, value: object, width: int, name_width: int) -> Line:
        palette = self.view.palette
        line = Line().add(f" {text.fit(knob.name, name_width)} ", palette["muted"])
        line.add(text.value(value), palette["muted"])
        return line.right(width, Line().add("start-up only ", palette["faint"]), palette["text"])

    def _notes(self, live: list[Knob], width: int) -> list[Line]:
        """What the engine said, or what the selected knob does."""
        palette, staging = self.view.palette, self.staging
        if staging.refused:
            return _note("!", text.clean(staging.refused), width, palette["breach"])
        reported = [("!", text.clean(warning), palette["warn"]) for warning in staging.warnings]
        reported += self._forecast()
        if not reported and self.active and self.cursor < len(live):
            knob = live[self.cursor]
            trades = ((" ", knob.effect), ("+", knob.up), ("-", knob.down))
            reported = [(sign, words, palette["muted"]) for sign, words in trades]
        return [line for sign, words, style in reported for line in _note(sign, words, width, style)]

    def _forecast(self) -> list[tuple[str, str, Style]]:
        """What the staged values are expected to do."""
        palette, staging = self.view.palette, self.staging
        if staging.forecaster is None or not staging.staged:
            return []
        found = staging.forecaster.found(staging.staged)
        if found is None:
            return [(" ", "working out what it will do", palette["muted"])] if staging.forecaster.busy else []
        if isinstance(found, str):
            return [(" ", f"no forecast: {found}", palette["muted"])]
        head = (" ", f"expected over the next {found.horizon_s:.0f} s:", palette["muted"])
        return [head, *((">", words, palette[role]) for words, role in describe(found))]

    def selected(self) -> Knob | None:
        live = self.staging.live_knobs()
        return live[self.cursor] if self.cursor < len(live) else None

    def move(self, lines: int) -> None:
        self.cursor = max(0, min(len(self.staging.live_knobs()) - 1, self.cursor + lines))

    def copied(self) -> str:
        knob = self.selected()
        return f"{knob.name}={text.value(self.staging.current.get(knob.name))}" if knob is not None else ""

    def click_line(self, y: int, x: int) -> None:
        if self.top + y < len(self.staging.live_knobs()):
            self.cursor = self.top + y


def _note(sign: str, words: str, width: int, style: Style) -> list[Line]:
    """`words` wrapped behind a sign."""
    parts = wrap(words, width - 4)
    return [Line().add(f" {sign if index == 0 else ' '} {part}", style) for index, part in enumerate(parts)]


def wrap(words: str, width: int) -> list[str]:
    """`words` in lines of at most `width` characters."""
    lines: list[str] = []
    for word in words.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
