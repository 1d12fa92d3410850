"""The Knobs screen: all knobs with what they trade, presets, and what past changes did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedtop.console.actions import Registry
from schedtop.console.knobs.presets import PresetError, check_name, load_presets, save_preset
from schedtop.console.knobs.staged import Staging
from schedtop.console.screens.commands.common import CommonCommands
from schedtop.console.screens.commands.knobs import KnobCommands
from schedtop.console.screens.panel_screen import MoveCommands, PanelScreen
from schedtop.console.view import View
from schedtop.console.widgets.changes import ChangesPanel
from schedtop.console.widgets.knobs import KnobsPanel
from schedtop.console.widgets.panel import Panel
from schedtop.console.widgets.presets import PresetsPanel
from schedtop.console.widgets.prompt import Prompt
from schedtop.engine.contract.knobs import KnobError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget


class KnobsScreenCommands:
    """The hands of the Knobs screen for its panels."""

    def __init__(self, screen: KnobsScreen) -> None:
        self.screen = screen

    def why_not(self, name: str) -> str | None:
        screen = self.screen
        match name:
            case "preset_stage":
                return screen.knob_commands.why_not("knob_launch")
            case "preset_save" if screen.view.options.config_dir is None:
                return "there is no settings folder"
            case "change_step" if screen.changes.selected() is None:
                return "no knob was changed yet"
        return None

    def do_back(self) -> None:
        staging = self.screen.knobs.staging
        if staging.staged:
            staging.drop()
        else:
            self.screen.app.pop_screen()

    def do_next_panel(self) -> None:
        self.screen.focus_panel(1)

    def do_previous_panel(self) -> None:
        self.screen.focus_panel(-1)

    def do_panel_6(self) -> None:
        self.screen.show_panel(self.screen.knobs)

    def do_panel_8(self) -> None:
        self.screen.show_panel(self.screen.presets)

    def do_panel_9(self) -> None:
        self.screen.show_panel(self.screen.changes)

    def do_preset_stage(self) -> None:
        preset = self.screen.presets.selected()
        if preset is None:
            return
        differing = self.screen.presets.differing(preset)
        if not differing:
            self.screen.say(f"{preset.name} is what is in force")
            return
        staging = self.screen.knobs.staging
        staging.drop()
        try:
            for name, value in differing.items():
                staging.stage(name, value)
        except KnobError as error:
            staging.drop()
            self.screen.say(f"{preset.name} cannot be staged: {error}", "breach")
            return
        self.screen.knob_commands.preview()
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
                path = save_preset(folder, name.strip(), screen.knobs.staging.current)
            except PresetError as error:
                screen.say(str(error), "breach")
                return
            except OSError as error:
                screen.say(f"cannot write to {folder}: {error.strerror or error}", "breach")
                return
            screen.presets.presets, _ = load_presets(folder)
            screen.say(f"saved {path}", "ok")

        def wrong(name: str) -> str:
            try:
                check_name(name.strip())
            except PresetError as error:
                return str(error)
            return ""

        screen.prompt.ask("name of the preset", "", done, wrong=wrong)

    def do_change_step(self) -> None:
        change = self.screen.changes.selected()
        if change is None or not self.screen.view.pin(change.seq):
            self.screen.say(self.screen.view.forgotten, "warn")
            return
        self.screen.app.pop_screen()


class KnobsScreen(PanelScreen):
    """Esc drops what is staged, then returns; everything else works as on the Live screen."""

    def __init__(self, view: View, registry: Registry, staging: Staging) -> None:
        presets, self.problems = load_presets(view.options.config_dir)
        self.knobs = KnobsPanel(view, staging, id="knobs")
        self.presets = PresetsPanel(view, staging, presets, id="presets")
        self.changes = ChangesPanel(view, id="changes")
        super().__init__(view, registry, (self.knobs, self.presets, self.changes))
        self.prompt = Prompt(view, id="prompt")
        self.knob_commands = KnobCommands(self, self.knobs, self.prompt)
        own = KnobsScreenCommands(self)
        self.commands = (self.knob_commands, own, MoveCommands(self), CommonCommands(self))

    def show_panel(self, panel: Panel) -> None:
        """Give a panel the focus, or say why it cannot have it."""
        if not panel.display:
            self.say(f"no room for {panel.TITLE} here: make the terminal higher", "warn")
        else:
            self.set_focus(panel)

    def more(self) -> Iterable[Widget]:
        return (self.prompt,)

    def on_mount(self) -> None:
        for problem in self.problems[:1]:
            self.say(problem, "warn")

    @property
    def open_prompt(self) -> Prompt | None:
        return self.prompt if self.prompt.display else None
