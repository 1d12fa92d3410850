"""The outcome of the re-run: figures side by side, where the runs diverge, and how they were made."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.replay.rerun.panels import RunsPanel, UnnumberedPanel
from schedtop.console.widgets.knobs import wrap
from schedtop.console.widgets.panel import Pieces

if TYPE_CHECKING:
    from schedtop.console.replay.rerun.runs import Outcome, Reruns, Row
    from schedtop.console.view import View

LABEL, VALUE, CHANGE, VERDICT = 19, 10, 19, 6
_ROLES = {"better": "ok", "worse": "breach"}


class FiguresPanel(RunsPanel):
    TITLE: ClassVar[str] = "Figures"
    HELP: ClassVar[str] = """\
Figures of the whole stretch that was run again. The difference is between two runs that can be compared: the one as
recorded and the one with changed knobs, both simulated if the recording is of a real device. A difference that does
not show in the figures is called none (=), one of less than 1 % is neither better nor worse.
If requests were in flight when the recording ended, counts and rates end with it; latencies are of the same requests
in both runs, which go on until those are served. > is a lower bound: some are not served yet."""

    def headline(self) -> Pieces:
        outcome = self.overlay.outcome
        if outcome is None:
            return []
        where = f"from step {outcome.step} on" if outcome.step else "from the start"
        note = self.overlay.page_note
        what = [*note, (self.overlay.change, "accent")] if note else []
        return [*what, (where, "text"), (text.plural(outcome.num_steps, "step"), "muted")]

    @property
    def in_three(self) -> bool:
        """The recorded run has a column beside its own re-run: they are not the same."""
        outcome = self.overlay.outcome
        return outcome is not None and not outcome.exact

    @property
    def least_width(self) -> int:
        return LABEL + VALUE * (3 if self.in_three else 2) + CHANGE + VERDICT + 3

    def body(self, width: int, height: int) -> list[Line]:
        outcome = self.overlay.outcome
        if outcome is None:
            return []
        rows = [row for row in outcome.rows if not _idle(row)]
        room = max(1, height - 1)
        self._top = max(0, min(self._top, len(rows) - room))
        return [self._head(width, outcome), *(self._row(row) for row in rows[self._top : self._top + room])]

    def _head(self, width: int, outcome: Outcome) -> Line:
        muted = self.view.palette.on("muted", "surface")
        names = ["recorded", "re-run"]
        if self.in_three:
            names = ["recorded", "as rec.", "changed"]
        line = Line().add(" " * LABEL, muted)
        for name in names:
            line.add(f"{name:>{VALUE}}", muted)
        return line.add("  difference", muted).pad(width, muted)

    def _row(self, row: Row) -> Line:
        palette = self.view.palette
        line = Line().add(f" {text.fit(row.label, LABEL - 1)}", palette["text"])
        if self.in_three:
            line.add(f"{row.recorded:>{VALUE}}", palette["muted"])
        line.add(f"{row.base:>{VALUE}}", palette["muted" if row.verdict == "same" else "text"])
        line.add(f"{row.variant:>{VALUE}}", palette["text"] + Style(bold=row.verdict not in ("", "same")))
        role = _ROLES.get(row.verdict, "muted")
        line.add(f"  {text.fit(row.change, CHANGE)}", palette[role])
        return line.add(row.verdict if row.verdict in _ROLES else "", palette[role])

    def copied(self) -> str:
        outcome = self.overlay.outcome
        rows = outcome.rows if outcome is not None else ()
        return "; ".join(f"{row.label} {row.base} -> {row.variant} {row.change}".strip() for row in rows)


def _idle(row: Row) -> bool:
    """Nothing to show: no run refused any."""
    return row.name == "refused" and {row.recorded, row.base, row.variant} == {"0"}


class PartingPanel(RunsPanel):
    TITLE: ClassVar[str] = "First difference"
    HELP: ClassVar[str] = """\
The first step that is not the same in the run as recorded and in the changed one, and in what: who got tokens, who
was admitted or preempted, what stopped the scheduler, why the head of the queue waits. Limits themselves are no
difference, only what was decided under them. Below it: how the runs were made."""

    def headline(self) -> Pieces:
        outcome = self.overlay.outcome
        if outcome is None:
            return []
        if outcome.divergence is None:
            return [*self.overlay.page_note, ("none", "ok")]
        where = f"step {outcome.divergence.step}"
        return [*self.overlay.page_note, (where, "warn"), ("d goes there", "muted")]

    def body(self, width: int, height: int) -> list[Line]:
        outcome = self.overlay.outcome
        if outcome is None:
            return []
        lines = [*self._difference(outcome, width), Line(), *self._made(outcome, width)]
        self._top = max(0, min(self._top, len(lines) - height))
        return lines[self._top : self._top + height]

    def _difference(self, outcome: Outcome, width: int) -> list[Line]:
        """A line for each part and run, wrapped."""
        palette = self.view.palette
        if outcome.divergence is None:
            words = f"no change: all {outcome.num_steps:,} steps are the same"
            return [Line().add(f" {words}", palette["ok"] + Style(bold=True))]
        lines = []
        for part in outcome.divergence.parts:
            lines.append(Line().add(f" {text.clean(part.field)}", palette["text"] + Style(bold=True)))
            for name, words, role in (("as was", part.base, "muted"), ("re-run", part.variant, "accent")):
                words = words.replace("_", " ") if part.field == "limiter" else words
                for number, piece in enumerate(wrap(text.clean(words, 400), width - 10)):
                    lines.append(Line().add(f"  {'' if number else name:<6} {piece}", palette[role]))
        return lines

    def _made(self, outcome: Outcome, width: int) -> list[Line]:
        palette = self.view.palette
        return [
            Line().add(f" {'  ' if number else ''}{piece}", palette[role])
            for words, role in made(outcome)
            for number, piece in enumerate(wrap(text.clean(words, 600), width - 4))
        ]


def made(outcome: Outcome) -> list[tuple[str, str]]:
    """How the runs came about, each line with its role."""
    lines = [(note, "warn") for note in outcome.notes]
    if not outcome.measured:
        lines.append((f"Simulated on {outcome.device}.", "muted"))
    if outcome.exact:
        lines.append(("Run again as it was, it is the recording, step for step.", "muted"))
    elif outcome.drift is None:
        lines.append(("Run again as it was, it decides what was recorded, in its own time.", "muted"))
    else:
        lines.append(
            (
                f"Run again as it was, it decides what was recorded up to step {outcome.drift.step}; beyond that"
                " compare the two re-runs with each other, not with the recording.",
                "muted",
            )
        )
    if outcome.unfinished:
        many = text.plural(outcome.unfinished, "request")
        words = f"The recording ends with {many} in flight: for latencies the re-runs go on until they are served."
        lines.append((words, "muted"))
        if any(outcome.unserved):
            words = "Not served even then: {} as it was, {} with the change.".format(*outcome.unserved)
            lines.append((words, "warn"))
    else:
        lines.append(("All runs serve every request.", "muted"))
    return lines


class ProgressPanel(UnnumberedPanel):
    """Replaces all others while a run is under way, or after one failed."""

    TITLE: ClassVar[str] = "Re-run"
    HELP: ClassVar[str] = "The recording is run again twice, as it was and with the changed knobs. Esc cancels."

    def __init__(self, view: View, reruns: Reruns, *, id: str) -> None:
        super().__init__(view, id=id)
        self.reruns = reruns
        self.words = ""

    def headline(self) -> Pieces:
        return [(self.words, "text")]

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        if self.reruns.doing is None:
            pieces = wrap(self.reruns.failed, width - 4)
            head = Line().add("  Re-run failed", palette["breach"])
            return [Line(), head, *(Line().add(f"  {piece}", palette["text"]) for piece in pieces)]
        what, share = self.reruns.doing
        cells = min(60, width - 12)
        done = round(cells * min(1.0, share))
        glyphs = self.view.glyphs
        bar = Line().add(f"  {glyphs.left}", palette["muted"]).add(glyphs.held * done, palette["accent"])
        bar.add(glyphs.unused * (cells - done), palette["faint"]).add(glyphs.right, palette["muted"])
        bar.add(f" {min(1.0, share):4.0%}", palette["text"])
        return [Line(), Line().add(f"  {what}", palette["text"]), bar, Line(), self._hint()]

    def _hint(self) -> Line:
        palette = self.view.palette
        return Line().add("  Esc", palette["accent"]).add(" cancels", palette["muted"])
