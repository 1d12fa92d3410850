"""What the Live screen's actions do. One short method per action, named after its id."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedtop.console import export, text
from schedtop.console.screens.help import HelpScreen
from schedtop.console.screens.palette import PaletteScreen
from schedtop.console.screens.quit import QuitScreen
from schedtop.engine.knobs import KnobError
from schedtop.engine.telemetry import Pause, Reply, Resume, SetKnobs, StepOnce

if TYPE_CHECKING:
    from schedtop.console.app import ConsoleApp
    from schedtop.console.screens.live import LiveScreen
    from schedtop.console.view import View

_KNOB_ACTIONS = ("knob_up", "knob_down", "knob_type", "knob_apply", "knob_undo", "knob_launch")
_ENGINE_ACTIONS = ("pause_engine", "step_engine", *_KNOB_ACTIONS)
_NO_OSC52 = ("linux", "vt100", "vt220")


class Commands:
    """The hands of one Live screen."""

    def __init__(self, screen: LiveScreen) -> None:
        self.screen = screen

    @property
    def view(self) -> View:
        return self.screen.view

    @property
    def app(self) -> ConsoleApp:
        return self.screen.console

    def run(self, name: str) -> None:
        """Carry out the action with this id."""
        handler: Callable[[], None] = getattr(self, f"do_{name}")
        handler()

    def why_not(self, name: str) -> str | None:
        """Why an action cannot be taken now; None if it can."""
        view = self.view
        if name in _ENGINE_ACTIONS:
            if view.options.read_only:
                return "this console is read-only"
            if view.link.state != "open":
                return "no engine takes commands"
        if name in _KNOB_ACTIONS and view.pinned is not None:
            return "a past step is shown; End returns to the present"
        match name:
            case "step_engine" if not view.history.live.paused:
                return "the engine is running; P pauses it"
            case "knob_apply" if not self.screen.desk.staged and self.screen.knobs.selected() is None:
                return "nothing is staged"
            case "live" if view.pinned is None:
                return "this is the present"
            case "pause_view" | "step_back" | "step_forward" | "export" if not view.history.records:
                return "no step has come yet"
            case "detail" if self.screen.requests.selected_row() is None:
                return "no request is selected"
        return None

    # Everywhere

    def do_help(self) -> None:
        panel = self.screen.focused_panel
        title = f"[{panel.NUMBER}] {panel.TITLE}" if panel is not None else "schedtop"
        words = panel.HELP if panel is not None else ""
        self.app.push_screen(HelpScreen(title, words, self.screen.registry, self.why_not))

    def do_quit(self) -> None:
        in_flight = len(self.view.history.live.requests)
        if not in_flight or self.view.link.state != "open":
            self.app.exit(return_code=0)
            return
        what = (
            "Quitting ends them and the engine."
            if self.view.options.embedded
            else "The engine goes on without you."
        )
        question = f"{text.plural(in_flight, 'request')} in flight. {what}"
        self.app.push_screen(QuitScreen(question), lambda yes: self.app.exit(return_code=0) if yes else None)

    def do_interrupt(self) -> None:
        selection = self.screen.get_selected_text()
        if selection:
            self.copy(selection, "the selection")
        else:
            self.app.exit(return_code=0)

    def do_palette(self) -> None:
        def run(name: str | None) -> None:
            if name is not None:
                self.screen.action_act(name)

        self.app.push_screen(PaletteScreen(self.screen.registry, self.why_not), run)

    def do_next_panel(self) -> None:
        self._focus_next(1)

    def do_previous_panel(self) -> None:
        self._focus_next(-1)

    def _focus_next(self, direction: int) -> None:
        names = list(self.screen.panels)
        panel = self.screen.focused_panel
        index = names.index(str(panel.id)) if panel is not None else -direction
        self.screen.show_panel(names[(index + direction) % len(names)])

    def do_panel_1(self) -> None:
        self.screen.show_panel("batch")

    def do_panel_2(self) -> None:
        self.screen.show_panel("kv")

    def do_panel_3(self) -> None:
        self.screen.show_panel("requests")

    def do_panel_4(self) -> None:
        self.screen.show_panel("latency")

    def do_panel_5(self) -> None:
        self.screen.show_panel("queue")

    def do_panel_6(self) -> None:
        self.screen.show_panel("knobs")

    def do_panel_7(self) -> None:
        self.screen.show_panel("events")

    def do_zoom(self) -> None:
        panel = self.screen.focused_panel
        self.screen.zoomed = None if self.screen.zoomed is not None or panel is None else str(panel.id)
        self.screen.place()

    def do_back(self) -> None:
        """One level at a time: zoom, staged knobs, filter, past step."""
        if self.screen.zoomed is not None:
            self.screen.zoomed = None
        elif self.screen.desk.staged:
            self.screen.desk.drop()
        elif self.screen.requests.filter:
            self.screen.requests.set_filter("")
        elif self.view.pinned is not None:
            self.view.release()
        self.screen.place()

    def do_pause_view(self) -> None:
        if self.view.pinned is not None:
            self.view.release()
        else:
            self.view.pin(self.view.history.records[-1].seq)

    def do_live(self) -> None:
        self.view.release()

    def do_pause_engine(self) -> None:
        paused = self.view.history.live.paused
        command = Resume if paused else Pause
        self.app.command(
            lambda id: command(id), self._told("resuming the engine" if paused else "pausing the engine")
        )

    def do_step_engine(self) -> None:
        self.app.command(StepOnce, self._told("one step"))

    def do_explain(self) -> None:
        self.app.open_explain()

    # From Live, what belongs to the Explain screen opens it.
    do_finding_open = do_finding_back = do_evidence_step = do_explain

    def do_filter(self) -> None:
        before = self.screen.requests.filter.words
        self.screen.show_panel("requests")

        def changed(words: str) -> None:
            self.screen.requests.set_filter(words)
            self.screen.paint()

        def done(words: str | None) -> None:
            self.screen.requests.set_filter(before if words is None else words)
            self.screen.set_focus(self.screen.requests)
            self.screen.paint()

        self.screen.prompt.on_help = self.do_help
        self.screen.prompt.ask("filter: words for id or state, !word, kv>40, age>2s", before, done, changed)

    def do_copy(self) -> None:
        line = self.copied_line()
        if line:
            self.copy(line, f"{text.fit(line, 40).strip()}")
        else:
            self.screen.say("nothing is selected here", "warn")

    def copied_line(self) -> str:
        """The selected line of the focused panel as plain text."""
        panel = self.screen.focused_panel
        if panel is self.screen.requests:
            row = self.screen.requests.selected_row()
            return " ".join(f"{name}={getattr(row, name)}" for name in row._fields) if row is not None else ""
        if panel is self.screen.events:
            event = self.screen.events.selected()
            return f"{self.screen.events.time(event)} {event.kind} {event.describe()}" if event is not None else ""
        if panel is self.screen.knobs:
            knob = self.screen.knobs.selected()
            return f"{knob.name}={text.value(self.screen.desk.current.get(knob.name))}" if knob is not None else ""
        return " ".join(piece for piece, _ in panel.headline()) if panel is not None else ""

    def copy(self, words: str, what: str) -> None:
        """Through the terminal (OSC 52); into a file where the terminal is known not to take it."""
        if os.environ.get("TERM", "") in _NO_OSC52 or os.environ.get("TERM_PROGRAM") == "Apple_Terminal":
            self._save("schedtop-copy.txt", words)
            return
        self.app.copy_to_clipboard(words)
        self.screen.say(f"copied {what}", "ok")

    def do_export(self) -> None:
        steps = self.screen.batch_panel.shown_steps()
        try:
            paths = export.export_steps(steps, self.app.output_dir)
        except OSError as error:
            self.screen.say(f"cannot export to {self.app.output_dir}: {error.strerror or error}", "breach")
            return
        self.screen.say(f"{text.plural(len(steps), 'step')} in {' and '.join(str(path) for path in paths)}", "ok")

    def do_screenshot(self) -> None:
        svg = self.app.export_screenshot(title="schedtop")
        lines = "\n".join(strip.text.rstrip() for strip in self.app.screen_strips()) + "\n"
        self._save("schedtop.svg", svg)
        self._save("schedtop.txt", lines)

    def _save(self, name: str, words: str) -> Path | None:
        try:
            path = export.save_text(self.app.output_dir, name, words)
        except OSError as error:
            self.screen.say(f"cannot write to {self.app.output_dir}: {error.strerror or error}", "breach")
            return None
        self.screen.say(f"saved {path}", "ok")
        return path

    def do_theme(self) -> None:
        self.screen.say(f"theme: {self.app.next_theme()}")

    def do_mouse(self) -> None:
        self.screen.say("mouse on" if self.app.toggle_mouse() else "mouse off: the terminal selects text", "ok")

    def do_suspend(self) -> None:
        self.app.action_suspend_process()

    # Moving

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def _move(self, lines: int) -> None:
        if self.screen.focused_panel is not None:
            self.screen.focused_panel.move(lines)

    def do_page_up(self) -> None:
        if self.screen.focused_panel is not None:
            self.screen.focused_panel.move_page(-1)

    def do_page_down(self) -> None:
        if self.screen.focused_panel is not None:
            self.screen.focused_panel.move_page(1)

    def do_first(self) -> None:
        if self.screen.focused_panel is not None:
            self.screen.focused_panel.move_end(last=False)

    def do_last(self) -> None:
        if self.screen.focused_panel is not None:
            self.screen.focused_panel.move_end(last=True)

    # Panels

    def do_step_back(self) -> None:
        self.screen.batch_panel.inspect(-self.view.steps_per_column)

    def do_step_forward(self) -> None:
        self.screen.batch_panel.inspect(self.view.steps_per_column)

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

    def do_follow(self) -> None:
        self.screen.requests.following = not self.screen.requests.following

    def do_freeze(self) -> None:
        self.screen.requests.toggle_frozen()

    def do_next_match(self) -> None:
        self.screen.requests.next_match(1)

    def do_previous_match(self) -> None:
        self.screen.requests.next_match(-1)

    def do_detail(self) -> None:
        row = self.screen.requests.selected_row()
        if row is not None:
            self.screen.say(f"{row.id}: the request screen is still to come")

    def do_window_longer(self) -> None:
        self.screen.latency.resize_window(1)

    def do_window_shorter(self) -> None:
        self.screen.latency.resize_window(-1)

    def do_event_step(self) -> None:
        event = self.screen.events.selected()
        if event is None or not self.view.pin(event.seq):
            self.screen.say("that step is no longer kept", "warn")

    def do_event_level(self) -> None:
        self.screen.events.cycle_level()

    # Knobs

    def do_knob_up(self) -> None:
        self._nudge(1)

    def do_knob_down(self) -> None:
        self._nudge(-1)

    def _nudge(self, direction: int) -> None:
        knob = self.screen.knobs.selected()
        if knob is not None:
            self.screen.desk.nudge(knob.name, direction)
            self._foresee()

    def do_knob_type(self) -> None:
        knob = self.screen.knobs.selected()
        if knob is None:
            return

        def done(words: str | None) -> None:
            if words is not None:
                try:
                    self.screen.desk.stage(knob.name, words)
                except KnobError as error:
                    self.screen.desk.refused = str(error)
                else:
                    self._foresee()
            self.screen.set_focus(self.screen.knobs)
            self.screen.paint()

        self.screen.prompt.on_help = self.do_help
        shown = text.value(self.screen.desk.shown(knob.name))
        self.screen.prompt.ask(f"{knob.name} ({self.screen.desk.range_of(knob)})", shown, done)

    def do_knob_apply(self) -> None:
        if not self.screen.desk.staged:
            self.do_knob_type()
            return
        values, version = self.screen.desk.applying(), self.view.history.live.knobs_version

        def replied(reply: Reply) -> None:
            if reply.ok:
                self.screen.desk.applied(values)
                words = "; ".join(reply.warnings)
                self.screen.say(f"applied {', '.join(values)}" + (f": {words}" if words else ""), "ok")
            else:
                self.screen.desk.refused = reply.text
                self.screen.say(reply.text, "breach")

        self.app.command(lambda id: SetKnobs(id, values, version, by="key"), replied)

    def do_knob_undo(self) -> None:
        if self.screen.desk.stage_undo():
            self._foresee()
            self.screen.say("the values before your last change are staged; Enter applies them")
        else:
            self.screen.say("no change of yours is left to undo", "warn")

    def do_knob_launch(self) -> None:
        if self.screen.desk.stage_launch():
            self._foresee()
            self.screen.say("the launch values are staged; Enter applies them")
        else:
            self.screen.say("every knob is at its launch value")

    def _foresee(self) -> None:
        """Ask the engine what the staged values would do."""
        values: dict[str, Any] = dict(self.screen.desk.staged)
        if not values:
            return

        def replied(reply: Reply) -> None:
            if values == self.screen.desk.staged:
                self.screen.desk.warnings = list(reply.warnings)
                self.screen.desk.refused = "" if reply.ok else reply.text

        self.app.command(lambda id: SetKnobs(id, values, by="key", dry_run=True), replied)

    def _told(self, done: str) -> Any:
        """A reply's words for the footer."""

        def replied(reply: Reply) -> None:
            self.screen.say(done if reply.ok else reply.text, "ok" if reply.ok else "breach")

        return replied
