"""Actions that work on every screen. One short method per action, named after its id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from schedtop.console.drawing import text
from schedtop.console.screens.base import Console, ConsoleScreen
from schedtop.console.screens.command_palette import PaletteEntry, PaletteScreen
from schedtop.console.screens.help import HelpScreen
from schedtop.console.screens.palette_entries import entries
from schedtop.console.screens.quit import QuitScreen
from schedtop.console.terminal import clipboard, export
from schedtop.engine.contract.commands import Abort, Pause, Resume, StepOnce
from schedtop.engine.contract.telemetry import Reply, StepRecord

if TYPE_CHECKING:
    from schedtop.console.view import View

AnyScreen = TypeVar("AnyScreen", bound=ConsoleScreen)

NO_OSC52 = ("linux", "vt100", "vt220")
"""Terminals that are known not to take a copy."""


def engine_refuses(view: View) -> str | None:
    """Why no command can be sent; None if it can."""
    if view.replay is not None:
        return "a recording cannot be changed"
    if view.options.read_only:
        return "this console is read-only"
    if view.link.state != "open":
        return "not connected to an engine"
    return None


def abort_refused(view: View, number: int | None) -> str | None:
    """Why a request cannot be aborted; None if it can."""
    if number is None:
        return "no request is selected"
    ended = view.history is not view.present or number not in view.present.live.requests
    return engine_refuses(view) or ("it has ended" if ended else None)


def ask_abort(screen: ConsoleScreen, number: int) -> None:
    """Abort a request of the engine's, if the operator means it."""
    name, asked_of = screen.view.present.name(number), screen.view.present.header

    def on_reply(reply: Reply) -> None:
        why_not = reply.text.replace(f"request {number} ", f"{name} ")  # a gone request has no id for the engine
        screen.say(f"{name} aborted" if reply.ok else why_not, "ok" if reply.ok else "breach")

    def answered(yes: bool | None) -> None:
        header = screen.view.present.header
        if yes and header is not None and asked_of is not None and header.started_at != asked_of.started_at:
            screen.say(f"{name} ended with its engine; another one answers here", "breach")
        elif yes:
            screen.console.command(lambda id: Abort(id, number), on_reply)

    screen.app.push_screen(QuitScreen(f"Abort {name}? Its answer ends here.", "abort", "leave it"), answered)


class ScreenCommands(Generic[AnyScreen]):
    """The hands of one screen."""

    def __init__(self, screen: AnyScreen) -> None:
        self.screen = screen

    @property
    def view(self) -> View:
        return self.screen.view

    @property
    def console(self) -> Console:
        return self.screen.console


class CommonCommands(ScreenCommands[ConsoleScreen]):
    """The hands of one screen for what can be done anywhere."""

    def why_not(self, name: str) -> str | None:
        view = self.view
        match name:
            case "pause_engine":
                return engine_refuses(view)
            case "step_engine" if view.is_a_server:
                return "a vLLM server takes no single steps"
            case "step_engine":
                return engine_refuses(view) or (
                    None if view.present.live.paused else "the engine is running; P pauses it"
                )
            case "record":
                return self.console.recordings.why_not
            case "live" if view.pinned is None and view.cursor_s is None:
                return "the newest step is shown already"
            case "pause_view" | "export" if not view.history.records:
                return "no steps yet"
        return None

    def do_help(self) -> None:
        self.screen.app.push_screen(HelpScreen(self.screen))

    def do_quit(self) -> None:
        in_flight = len(self.view.present.live.requests)
        if not in_flight or self.view.link.state != "open":
            self.screen.app.exit(return_code=0)
            return
        what = "Quitting stops them and the engine." if self.view.options.embedded else "The engine keeps running."
        if self.view.trial is not None:
            what += f" The change on trial reverts in {self.view.trial.left_s(self.view.now()):.0f} s."
        question = f"{text.plural(in_flight, 'request')} in flight. {what}"
        self.screen.app.push_screen(
            QuitScreen(question), lambda yes: self.screen.app.exit(return_code=0) if yes else None
        )

    def do_interrupt(self) -> None:
        selection = self.screen.get_selected_text()
        if selection:
            self.copy(selection, "the selection")
        else:
            self.screen.app.exit(return_code=0)

    def do_palette(self) -> None:
        def run(entry: PaletteEntry | None) -> None:
            if entry is not None:
                entry.run()

        self.screen.app.push_screen(PaletteScreen(partial(entries, self.screen)), run)

    def do_explain(self) -> None:
        self.console.open_explain()

    def do_pause_view(self) -> None:
        if self.view.pinned is not None:
            self.view.release()
        else:
            self.view.pin(self.view.history.records[-1].seq)

    def do_live(self) -> None:
        self.view.release()

    def do_pause_engine(self) -> None:
        paused = self.view.present.live.paused
        command = Resume if paused else Pause
        held = "engine paused; P resumes it, . runs one step"
        if self.view.is_a_server:  # what runs continues
            held = "admissions paused; P resumes them"
        self.console.command(
            lambda id: command(id, f"console {self.view.options.who}".strip()),
            self._reported("resumed" if paused else held),
        )

    def do_step_engine(self) -> None:
        self.console.command(StepOnce, self._reported("one step"))

    def do_record(self) -> None:
        self.screen.app.run_worker(self.console.recordings.toggle(self.console.output_dir))

    def do_copy(self) -> None:
        line = self.screen.copied_line()
        if line:
            self.copy(line, f"{text.fit(line, 40).strip()}")
        else:
            self.screen.say("nothing is selected", "warn")

    def copy(self, words: str, what: str) -> None:
        """By tmux, or through the terminal (OSC 52); into a file where neither is known to take it."""

        async def by_tmux() -> None:
            if await asyncio.to_thread(clipboard.into_tmux, words):
                self.screen.say(f"copied {what} to the tmux buffer and the clipboard", "ok")
            else:
                self._save({"schedtop-copy.txt": words})

        environ = os.environ
        deaf = environ.get("TERM", "") in NO_OSC52 or environ.get("TERM_PROGRAM") == "Apple_Terminal"
        if environ.get("TMUX"):
            self.screen.app.run_worker(by_tmux())
        elif deaf or environ.get("STY"):
            self._save({"schedtop-copy.txt": words})
        else:
            self.screen.app.copy_to_clipboard(words)
            self.screen.say(f"copied {what}", "ok")

    def do_export(self) -> None:
        steps = self.console.shown_steps()
        self.screen.say(f"writing {text.plural(len(steps), 'step')}")
        self.screen.app.run_worker(self._export(steps))

    async def _export(self, steps: Sequence[StepRecord]) -> None:
        try:  # not on the loop: whole records of many requests take seconds
            paths = await asyncio.to_thread(export.export_steps, steps, self.console.output_dir)
        except OSError as error:
            self.console.front.say(
                f"cannot export to {self.console.output_dir}: {error.strerror or error}", "breach"
            )
            return
        self.console.front.say(
            f"{text.plural(len(steps), 'step')} in {' and '.join(str(path) for path in paths)}", "ok"
        )

    def do_screenshot(self) -> None:
        svg = self.screen.app.export_screenshot(title="schedtop")
        lines = "\n".join(strip.text.rstrip() for strip in self.console.screen_strips()) + "\n"
        self._save({"schedtop.svg": svg, "schedtop.txt": lines})

    def _save(self, texts: Mapping[str, str]) -> None:
        """Write files by name, and say where they are."""
        folder = self.console.output_dir
        try:
            paths = [export.save_text(folder, name, words) for name, words in texts.items()]
        except OSError as error:
            self.screen.say(f"cannot write to {folder}: {error.strerror or error}", "breach")
        else:
            self.screen.say(f"saved {' and '.join(str(path) for path in paths)}", "ok")

    def do_theme(self) -> None:
        self.screen.say(f"theme: {self.console.next_theme()}")

    def do_mouse(self) -> None:
        self.screen.say("mouse on" if self.console.toggle_mouse() else "mouse off: the terminal selects text", "ok")

    def do_knobs_screen(self) -> None:
        self.console.show_knobs()

    def do_suspend(self) -> None:
        self.screen.app.action_suspend_process()

    def _reported(self, done: str) -> Callable[[Reply], None]:
        """A reply's words for the footer."""

        def replied(reply: Reply) -> None:
            self.screen.say(done if reply.ok else reply.text, "ok" if reply.ok else "breach")

        return replied
