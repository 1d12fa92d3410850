"""The re-run screen: the recorded run and a re-run over each other, their figures, and where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.drawing import layout
from schedtop.console.replay.rerun.timeline import RunsTimeline, RunsTimelinePanel
from schedtop.console.replay.rerun.verdict import FiguresPanel, PartingPanel, ProgressPanel
from schedtop.console.screens.base import ConsoleScreen, TooSmall
from schedtop.console.screens.commands.common import CommonCommands
from schedtop.console.screens.panel_screen import MoveCommands
from schedtop.console.widgets.header import HeaderBar

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.replay.player import Player
    from schedtop.console.replay.rerun.overlay import Overlay
    from schedtop.console.replay.rerun.runs import Answer, Reruns
    from schedtop.console.view import View
    from schedtop.console.widgets.panel import Drawn, Panel
    from textual.app import ComposeResult
    from textual.events import Resize

_GAP = 2


class RerunScreen(ConsoleScreen):
    """Esc cancels a run under way, else returns to the replay. On small screens there is one page after the other."""

    AUTO_FOCUS: ClassVar[str | None] = None

    def __init__(self, view: View, registry: Registry, player: Player, reruns: Reruns, overlay: Overlay) -> None:
        super().__init__(view, registry)
        self.player, self.reruns, self.overlay = player, reruns, overlay
        self.header = HeaderBar(view, id="header")
        self.both = RunsTimelinePanel(view, self.overlay, id="runs")
        self.figures = FiguresPanel(view, self.overlay, id="figures")
        self.parting = PartingPanel(view, self.overlay, id="parting")
        self.progress = ProgressPanel(view, self.reruns, id="progress")
        self.pages: tuple[Panel, ...] = (self.both, self.figures, self.parting)
        self.page: Panel = self.both
        self.small = TooSmall()
        self.cursor_before_s = view.cursor_s
        self.commands = (RerunCommands(self), MoveCommands(self), CommonCommands(self))

    def compose(self) -> ComposeResult:
        yield from self.drawn
        yield self.small

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        return self.header, *self.pages, self.progress, self.footer

    @property
    def panel(self) -> Panel:
        """The page that is moved in."""
        return self.page

    @property
    def busy(self) -> bool:
        """A run is under way, or the last one failed."""
        return self.reruns.doing is not None or bool(self.reruns.failed) or self.overlay.outcome is None

    def on_mount(self) -> None:
        self.place()

    def on_resize(self, event: Resize) -> None:
        self.paint()

    def paint(self) -> None:
        if not self.small.is_attached:
            return
        with self.view.history.lock:
            if self.reruns.answer is not None and not self.reruns.failed:
                self._take(self.reruns.answer)
            self.view.look()
            self.place()
            for widget in self.drawn:
                widget.paint()

    def _take(self, answer: Answer) -> None:
        """A new answer is shown whole, with the cursor where its runs part; a known one with it where the replay is."""
        if self.overlay.show(answer):
            self.timeline.show_all()
            self.timeline.put(answer.outcome.parting_s or answer.outcome.start_s)
        elif self.view.cursor_s is None:
            self.timeline.put(self.view.axis_s)

    def place(self) -> None:
        width, height = self.app.size
        self.footer.scope = "" if self.busy else "rerun"
        self.small.tell(width, height)
        places = self._places(width, height)
        for widget in self.drawn:
            place = places.get(str(widget.id))
            widget.display = place is not None
            if place is not None:
                widget.styles.width, widget.styles.height = place.width, place.height
                widget.styles.offset = (place.x, place.y)

    def _places(self, width: int, height: int) -> layout.Places:
        if layout.mode(width, height) == "small":
            return {}
        bars = {"header": layout.Place(0, 0, width, 1), "footer": layout.Place(0, height - 1, width, 1)}
        room = max(1, height - 2)
        if self.busy:
            return {**bars, "progress": layout.Place(0, 1, width, room)}
        self.overlay.page_note = []
        if not self.side_by_side:
            self.overlay.page_note = [(f"Tab {self.pages.index(self.page) + 1} of {len(self.pages)}", "muted")]
            return {**bars, str(self.page.id): layout.Place(0, 1, width, room)}
        right = self.figures.least_width
        left = width - right - _GAP
        figures = min(22, room // 2 + 2)
        return {
            **bars,
            "runs": layout.Place(0, 1, left, room),
            "figures": layout.Place(left + _GAP, 1, right, figures),
            "parting": layout.Place(left + _GAP, 1 + figures, right, room - figures),
        }

    @property
    def side_by_side(self) -> bool:
        width, height = self.app.size
        return layout.mode(width, height) == "wide"

    @property
    def timeline(self) -> RunsTimeline:
        return self.both.timeline

    def help_page(self) -> tuple[str, str]:
        shown = self.progress if self.busy else self.page
        return shown.TITLE, shown.HELP

    def copied_line(self) -> str:
        return self.figures.copied()


class RerunCommands:
    """The hands of the re-run screen."""

    def __init__(self, screen: RerunScreen) -> None:
        self.screen = screen

    def why_not(self, name: str) -> str | None:
        overlay = self.screen.overlay
        if not name.startswith(("moment_", "range_", "rerun_over")):
            return None
        if self.screen.busy or overlay.outcome is None:
            return "no re-run yet"
        match name:
            case "moment_parting" if overlay.parting_s is None:
                return "every step is the same"
            case "rerun_over" if overlay.outcome.exact:
                return "run again as it was, it is the recording, step for step"
        return None

    def do_back(self) -> None:
        self.screen.reruns.cancel()
        self.screen.reruns.failed = ""
        self.screen.view.cursor_s = self.screen.cursor_before_s
        self.screen.app.pop_screen()

    def do_next_panel(self) -> None:
        self._turn(1)

    def do_previous_panel(self) -> None:
        self._turn(-1)

    def _turn(self, direction: int) -> None:
        pages = self.screen.pages
        self.screen.page = pages[(pages.index(self.screen.page) + direction) % len(pages)]

    @property
    def timeline(self) -> RunsTimeline:
        return self.screen.timeline

    def do_first(self) -> None:
        self.timeline.put(self.timeline.extent()[0])

    def do_last(self) -> None:
        self.timeline.put(self.timeline.extent()[1])

    def do_zoom(self) -> None:
        self.timeline.show_all()

    def do_moment_earlier(self) -> None:
        self.timeline.move(-1, self.screen.both.size.width)

    def do_moment_later(self) -> None:
        self.timeline.move(1, self.screen.both.size.width)

    def do_moment_parting(self) -> None:
        outcome = self.screen.overlay.outcome
        assert outcome is not None and outcome.divergence is not None and outcome.parting_s is not None
        self.timeline.put(outcome.parting_s)
        self.screen.say(f"runs diverge at step {outcome.divergence.step}; Enter shows it in the replay")

    def do_moment_show(self) -> None:
        player, outcome, at_s = self.screen.player, self.screen.overlay.outcome, self.screen.view.cursor_s
        assert outcome is not None and at_s is not None
        found = player.history.source.index_at(at_s)
        if at_s == outcome.parting_s and outcome.exact and outcome.divergence is not None:
            found = player.history.source.index_of_step(outcome.divergence.step)
        player.pause()
        player.move(player.last if found is None else found)
        self.screen.view.cursor_s = None
        self.screen.app.pop_screen()
        words = "the recording ends earlier" if found is None else "as recorded"
        self.screen.console.front.say(f"{words}; v shows the re-run again")

    def do_range_longer(self) -> None:
        self.timeline.resize(1)

    def do_range_shorter(self) -> None:
        self.timeline.resize(-1)

    def do_rerun_over(self) -> None:
        overlay = self.screen.overlay
        overlay.over_recorded = not overlay.over_recorded
        self.screen.say(f"compared with: {overlay.base_name}")
