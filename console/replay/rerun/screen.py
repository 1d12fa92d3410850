"""The re-run screen: the recorded run and a re-run over each other, their figures, and where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.drawing import layout
from schedtop.console.replay.rerun.charts import GUTTER, ChartsPanel
from schedtop.console.replay.rerun.verdict import FiguresPanel, PartingPanel, ProgressPanel
from schedtop.console.screens.base import ConsoleScreen, TooSmall
from schedtop.console.screens.common_commands import CommonCommands
from schedtop.console.screens.panel_screen import MoveCommands
from schedtop.console.widgets.header import HeaderBar

if TYPE_CHECKING:
    from schedtop.console.actions import Registry
    from schedtop.console.replay.player import Player
    from schedtop.console.replay.rerun.overlay import Overlay
    from schedtop.console.replay.rerun.runs import Reruns
    from schedtop.console.view import View
    from schedtop.console.widgets.panel import Drawn, Panel
    from textual.app import ComposeResult
    from textual.events import Resize

_GAP = 2


class RerunScreen(ConsoleScreen):
    """Esc gives up a run under way, else returns to the replay. One page after the other where there is no room."""

    AUTO_FOCUS: ClassVar[str | None] = None

    def __init__(self, view: View, registry: Registry, player: Player, reruns: Reruns, overlay: Overlay) -> None:
        super().__init__(view, registry)
        self.player, self.reruns, self.overlay = player, reruns, overlay
        self.header = HeaderBar(view, id="header")
        self.charts = ChartsPanel(view, self.overlay, id="charts")
        self.figures = FiguresPanel(view, self.overlay, id="figures")
        self.parting = PartingPanel(view, self.overlay, id="parting")
        self.progress = ProgressPanel(view, self.reruns, id="progress")
        self.pages: tuple[Panel, ...] = (self.charts, self.figures, self.parting)
        self.page: Panel = self.charts
        self.small = TooSmall()
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
        """A run is under way, or the last one came to nothing."""
        return self.reruns.doing is not None or bool(self.reruns.failed) or self.overlay.outcome is None

    def on_mount(self) -> None:
        self.place()

    def on_resize(self, event: Resize) -> None:
        self.paint()

    def paint(self) -> None:
        if not self.small.is_attached:
            return
        if self.reruns.outcome is not None and not self.reruns.failed:
            self.overlay.show(self.reruns.outcome)
        with self.view.history.lock:
            self.view.look()
            self.place()
            for widget in self.drawn:
                widget.paint()

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
            "charts": layout.Place(0, 1, left, room),
            "figures": layout.Place(left + _GAP, 1, right, figures),
            "parting": layout.Place(left + _GAP, 1 + figures, right, room - figures),
        }

    @property
    def side_by_side(self) -> bool:
        width, height = self.app.size
        return layout.mode(width, height) == "wide"

    @property
    def chart_cells(self) -> int:
        return max(1, self.charts.size.width - GUTTER)

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
        if not name.startswith(("moment_", "span_", "rerun_over")):
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
        self.screen.app.pop_screen()

    def do_next_panel(self) -> None:
        self._turn(1)

    def do_previous_panel(self) -> None:
        self._turn(-1)

    def _turn(self, direction: int) -> None:
        pages = self.screen.pages
        self.screen.page = pages[(pages.index(self.screen.page) + direction) % len(pages)]

    def do_first(self) -> None:
        self.screen.overlay.choose(0.0)

    def do_last(self) -> None:
        self.screen.overlay.choose(self.screen.overlay.whole.end_s)

    def do_zoom(self) -> None:
        self.screen.overlay.zoom_out()

    def do_moment_earlier(self) -> None:
        self.screen.overlay.walk(-1, self.screen.chart_cells)

    def do_moment_later(self) -> None:
        self.screen.overlay.walk(1, self.screen.chart_cells)

    def do_moment_parting(self) -> None:
        overlay = self.screen.overlay
        assert overlay.outcome is not None and overlay.outcome.divergence is not None
        overlay.choose(overlay.parting_s or 0.0)
        self.screen.say(f"runs diverge at step {overlay.outcome.divergence.step}; Enter shows it in the replay")

    def do_moment_show(self) -> None:
        overlay, player = self.screen.overlay, self.screen.player
        outcome = overlay.outcome
        assert outcome is not None
        at_s = outcome.start_s + overlay.moment_s
        found = player.history.source.index_at(at_s)
        if overlay.moment_s == overlay.parting_s and outcome.exact and outcome.divergence is not None:
            found = player.history.source.index_of_step(outcome.divergence.step)
        player.pause()
        player.move(player.last if found is None else found)
        self.screen.app.pop_screen()
        words = "the recording ends earlier" if found is None else "as recorded"
        self.screen.console.front.say(f"{words}; v shows the re-run again")

    def do_span_shorter(self) -> None:
        self._zoom(1)

    def do_span_longer(self) -> None:
        self._zoom(-1)

    def _zoom(self, direction: int) -> None:
        if not self.screen.overlay.zoom(direction):
            self.screen.say("cannot zoom in further" if direction > 0 else "the whole run is shown")

    def do_rerun_over(self) -> None:
        overlay = self.screen.overlay
        overlay.over_recorded = not overlay.over_recorded
        self.screen.say(f"compared with: {overlay.under_name}")
