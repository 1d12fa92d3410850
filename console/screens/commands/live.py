"""What the Live screen's own actions do. One short method per action, named after its id."""

from __future__ import annotations

from functools import partial

from schedtop.console.guide import KNOB
from schedtop.console.life.request_list import Filter
from schedtop.console.screens.base import Commands
from schedtop.console.screens.commands.common import (
    CommonCommands,
    ScreenCommands,
    abort_refused,
    ask_abort,
    engine_refuses,
)
from schedtop.console.screens.commands.knobs import KnobCommands
from schedtop.console.screens.live import LiveScreen
from schedtop.console.screens.panel_screen import MoveCommands
from schedtop.console.widgets.events import LEVELS
from schedtop.engine.contract.commands import SetKnobs


class LiveCommands(ScreenCommands[LiveScreen]):
    """The hands of the Live screen for its panels."""

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__(screen)
        for name, panel in screen.panels.items():
            setattr(self, f"do_panel_{panel.NUMBER}", partial(screen.show_panel, name))

    def why_not(self, name: str) -> str | None:
        match name:
            case "step_back" | "step_forward" if not self.view.history.records:
                return "no steps yet"
            case "guide" if not self.view.options.embedded:
                return "only on an engine of this console's own"
            case "guide":
                return engine_refuses(self.view)
            case "detail" if self.screen.requests.selected_row() is None:
                return "no request is selected"
            case "abort":
                return abort_refused(self.view, self._selected())
        return None

    def _selected(self) -> int | None:
        row = self.screen.requests.selected_row()
        return None if row is None else row.number

    # Focus, zoom, filter

    def do_next_panel(self) -> None:
        self._focus_next(1)

    def do_previous_panel(self) -> None:
        self._focus_next(-1)

    def _focus_next(self, direction: int) -> None:
        names = list(self.screen.panels)
        panel = self.screen.focused_panel
        index = names.index(str(panel.id)) if panel is not None else -direction
        self.screen.show_panel(names[(index + direction) % len(names)])

    def do_panel_8(self) -> None:
        self._on_knobs_screen("panel_8")

    def do_panel_9(self) -> None:
        self._on_knobs_screen("panel_9")

    def _on_knobs_screen(self, action: str) -> None:
        self.console.show_knobs()
        self.console.front.call_after_refresh(self.console.front.action_act, action)

    def do_guide(self) -> None:
        """Make the pressure that the guided minute begins with."""
        values = {KNOB: self.console.guide.tighten()}
        refused = "the engine refused the pressure"
        self.console.command(
            lambda id: SetKnobs(id, values, by=f"guide {self.view.options.who}".strip()),
            lambda reply: None if reply.ok else self.screen.say(f"{refused}: {reply.text}", "warn"),
        )

    def do_zoom(self) -> None:
        panel = self.screen.focused_panel
        self.screen.zoomed = None if self.screen.zoomed is not None or panel is None else str(panel.id)
        self.screen.place()

    def do_back(self) -> None:
        """One level at a time: zoom, staged knobs, filter, past step."""
        if self.screen.zoomed is not None:
            self.screen.zoomed = None
        elif self.screen.staging.staged:
            self.screen.staging.drop()
        elif self.screen.requests.filter:
            self.screen.requests.set_filter("")
        elif self.view.pinned is not None or self.view.cursor_s is not None:
            self.view.release()
        self.screen.place()

    def do_filter(self) -> None:
        before = self.screen.requests.filter.words
        self.screen.show_panel("requests")

        def changed(words: str) -> None:
            self.screen.requests.set_filter(words)
            self.screen.paint()

        def done(words: str | None) -> None:
            self.screen.requests.set_filter(before if words is None else words)
            self.screen.set_focus(self.screen.requests)
            problems = self.screen.requests.filter.problems
            if words is not None and problems:
                self.screen.say(problems[0], "warn")
            self.screen.paint()

        self.screen.prompt.on_help = CommonCommands(self.screen).do_help
        hint = "filter: words for id or state, !word, kv>40, age>2s"
        self.screen.prompt.ask(hint, before, done, changed, lambda words: next(iter(Filter(words).problems), ""))

    # Panels

    def do_step_back(self) -> None:
        self.screen.batch_panel.look_along(-1)

    def do_step_forward(self) -> None:
        self.screen.batch_panel.look_along(1)

    def do_column_open(self) -> None:
        """The worst step under the cursor, in the batch view."""
        batch = self.screen.batch_panel
        seq = batch.timeline.worst_seq(batch.size.width)
        if seq is None or not self.view.pin(seq):
            self.screen.say(self.view.forgotten if seq is not None else "no step ended there", "warn")
            return
        self.view.cursor_s = None
        self.screen.zoomed = "batch"
        self.screen.place()

    def do_steps_more(self) -> None:
        self.screen.batch_panel.resize_columns(1)

    def do_steps_fewer(self) -> None:
        self.screen.batch_panel.resize_columns(-1)

    def do_sort_left(self) -> None:
        self.screen.requests.sort_by(-1)

    def do_sort_right(self) -> None:
        self.screen.requests.sort_by(1)

    def do_sort_invert(self) -> None:
        self.screen.requests.descending = not self.screen.requests.descending

    # Where tabs name the panels, no title can show these.

    def do_follow(self) -> None:
        table = self.screen.requests
        table.following = not table.following
        self.screen.say("the selected request is kept in sight" if table.following else "no longer following")

    def do_freeze(self) -> None:
        table = self.screen.requests
        table.toggle_frozen()
        self.screen.say("the order is frozen" if table.frozen is not None else f"sorted by {table.sort} again")

    def do_next_match(self) -> None:
        self.screen.requests.next_match(1)

    def do_previous_match(self) -> None:
        self.screen.requests.next_match(-1)

    def do_detail(self) -> None:
        row = self.screen.requests.selected_row()
        if row is not None:
            self.console.show_request(row.number)

    def do_abort(self) -> None:
        number = self._selected()
        if number is not None:
            ask_abort(self.screen, number)

    def do_window_longer(self) -> None:
        self.screen.latency.resize_window(1)

    def do_window_shorter(self) -> None:
        self.screen.latency.resize_window(-1)

    def do_event_step(self) -> None:
        event = self.screen.events.selected()
        if event is None or not self.view.pin(event.seq):
            self.screen.say(self.view.forgotten, "warn")

    def do_event_level(self) -> None:
        events = self.screen.events
        events.cycle_level()
        self.screen.say(f"events listed: {LEVELS[events.level][0]}")


def live_commands(screen: LiveScreen) -> tuple[Commands, ...]:
    """Who carries out actions on the Live screen."""
    return (
        KnobCommands(screen, screen.knobs, screen.prompt),
        LiveCommands(screen),
        MoveCommands(screen),
        CommonCommands(screen),
    )
