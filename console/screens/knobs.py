"""The Knobs screen: all knobs with what they trade, presets, and what past changes did."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console import layout
from schedtop.console.actions import Registry
from schedtop.console.desk import KnobDesk
from schedtop.console.presets import PresetError, load_presets, save_preset
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.screens.everywhere import EverywhereCommands
from schedtop.console.screens.knob_commands import KnobCommands
from schedtop.console.view import View
from schedtop.console.widgets.changes import ChangesPanel
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.knobs import KnobsPanel
from schedtop.console.widgets.panel import Panel
from schedtop.console.widgets.presets import PresetsPanel
from schedtop.console.widgets.prompt import Prompt

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Resize


class KnobsScreenCommands:
    """The hands of the Knobs screen for its panels."""

    def __init__(self, screen: KnobsScreen) -> None:
        self.screen = screen

    def why_not(self, name: str) -> str | None:
        screen = self.screen
        match name:
            case "preset_stage" if screen.view.options.read_only:
                return "this console is read-only"
            case "preset_save" if screen.view.options.config_dir is None:
                return "there is no settings folder"
            case "change_step" if screen.changes.selected() is None:
                return "no knob was changed yet"
        return None

    def do_back(self) -> None:
        desk = self.screen.knobs.desk
        if desk.staged:
            desk.drop()
        else:
            self.screen.console.pop_screen()

    def do_next_panel(self) -> None:
        self.screen.focus_panel(1)

    def do_previous_panel(self) -> None:
        self.screen.focus_panel(-1)

    def do_up(self) -> None:
        self.screen.panel.move(-1)

    def do_down(self) -> None:
        self.screen.panel.move(1)

    def do_page_up(self) -> None:
        self.screen.panel.move_page(-1)

    def do_page_down(self) -> None:
        self.screen.panel.move_page(1)

    def do_first(self) -> None:
        self.screen.panel.move_end(last=False)

    def do_last(self) -> None:
        self.screen.panel.move_end(last=True)

    def do_preset_stage(self) -> None:
        preset = self.screen.presets.selected()
        if preset is None:
            return
        differing = self.screen.presets.differing(preset)
        if not differing:
            self.screen.say(f"{preset.name} is what is in force")
            return
        desk = self.screen.knobs.desk
        desk.drop()
        for name, value in differing.items():
            desk.stage(name, value)
        self.screen.knob_commands.foresee()
        self.screen.set_focus(self.screen.knobs)
        does = "applies it" if self.screen.view.replay is None else "re-runs with it"
        self.screen.say(f"{preset.name} is staged; Enter {does}")

    def do_preset_save(self) -> None:
        screen = self.screen

        def done(name: str | None) -> None:
            screen.set_focus(screen.presets)
            if not name:
                return
            folder = screen.view.options.config_dir
            assert folder is not None
            try:
                path = save_preset(folder, name.strip(), screen.knobs.desk.current)
            except PresetError as error:
                screen.say(str(error), "breach")
                return
            except OSError as error:
                screen.say(f"cannot write to {folder}: {error.strerror or error}", "breach")
                return
            screen.presets.presets, _ = load_presets(folder)
            screen.say(f"saved {path}", "ok")

        screen.prompt.ask("name of the preset", "", done)

    def do_change_step(self) -> None:
        change = self.screen.changes.selected()
        if change is None or not self.screen.view.pin(change.seq):
            self.screen.say("that step is no longer kept", "warn")
            return
        self.screen.console.pop_screen()


class KnobsScreen(ConsoleScreen):
    """Esc drops what is staged, then returns; everything else works as on the Live screen."""

    AUTO_FOCUS: ClassVar[str | None] = "#knobs"

    def __init__(self, view: View, registry: Registry, desk: KnobDesk) -> None:
        super().__init__(view, registry, scope="knobs")
        presets, self.problems = load_presets(view.options.config_dir)
        self.header = HeaderBar(view, id="header")
        self.knobs = KnobsPanel(view, desk, id="knobs")
        self.presets = PresetsPanel(view, desk, presets, id="presets")
        self.changes = ChangesPanel(view, id="changes")
        self.panels: tuple[Panel, ...] = (self.knobs, self.presets, self.changes)
        self.prompt = Prompt(id="prompt")
        self.knob_commands = KnobCommands(self, self.knobs, self.prompt)
        self.commands = (self.knob_commands, KnobsScreenCommands(self), EverywhereCommands(self))

    def compose(self) -> ComposeResult:
        yield self.header
        yield from self.panels
        yield self.footer
        yield self.prompt

    def on_mount(self) -> None:
        self.place()
        for problem in self.problems[:1]:
            self.say(problem, "warn")

    def on_resize(self, event: Resize) -> None:
        self.place()

    def place(self) -> None:
        places = layout.arrange_knobs(*self.app.size)
        for widget in (self.header, *self.panels, self.footer):
            place = places.get(str(widget.id))
            widget.display = place is not None
            if place is not None:
                widget.styles.width, widget.styles.height = place.width, place.height
                widget.styles.offset = (place.x, place.y)

    @property
    def panel(self) -> Panel:
        """The panel that has the focus."""
        return self.focused if isinstance(self.focused, Panel) else self.knobs

    @property
    def typing(self) -> bool:
        return bool(self.prompt.display)

    def focus_panel(self, direction: int) -> None:
        shown = [panel for panel in self.panels if panel.display]
        index = shown.index(self.panel) if self.panel in shown else 0
        self.set_focus(shown[(index + direction) % len(shown)])

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(self.focused, Panel):
            self.footer.scope = str(self.focused.id)
        self.paint()

    def paint(self) -> None:
        with self.view.history.lock:
            self.view.look()
            for widget in (self.header, *self.panels, self.footer):
                widget.paint()

    def help_page(self) -> tuple[str, str]:
        return f"[{self.panel.NUMBER}] {self.panel.TITLE}", self.panel.HELP

    def copied_line(self) -> str:
        return self.panel.copied()
