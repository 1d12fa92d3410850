"""The console application: one feed, one view, the screens over it, and a clean terminal afterwards."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from platformdirs import user_config_path
from rich.color import ColorSystem
from rich.text import Text
from schedtop.console.actions import LIVE, TURNS, Registry, key_name, load_keymap
from schedtop.console.drawing.glyphs import ASCII, UNICODE
from schedtop.console.drawing.styles import Palette
from schedtop.console.drawing.textual_theme import textual_theme
from schedtop.console.explain.watch import Watch
from schedtop.console.explain.window import Bounds
from schedtop.console.feed import Commanded, Feed, Link
from schedtop.console.guide import Guide
from schedtop.console.knobs.forecast import Forecaster, MakeForecast
from schedtop.console.knobs.staged import Staging
from schedtop.console.knobs.trial import FollowedTrials
from schedtop.console.messages import DataArrived, ReplyReceived
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.history import History
from schedtop.console.past.past import Past
from schedtop.console.recordings import Recorder, Recordings
from schedtop.console.screens.base import Commands, ConsoleScreen
from schedtop.console.screens.commands.live import live_commands
from schedtop.console.screens.live import LiveScreen
from schedtop.console.terminal.driver import ConsoleDriver
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel
from schedtop.engine.contract.commands import Drain, Incoming
from schedtop.engine.contract.telemetry import Notice, Reply, StepRecord
from schedtop.themes.load import DEFAULT, Theme, load_themes
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.driver import Driver
    from textual.screen import Screen
    from textual.strip import Strip

RESEND_S = 0.02
"""How often a terminal that is still busy with the last frame is looked at again."""
UNHURRIED = ((50, 5), (10, 2))
"""From so many records a frame on nobody can tell steps apart: percentiles, tables and lists follow in every fifth
frame, or in every other."""

TICK_S = 0.5


class ConsoleApp(App[None], inherit_bindings=False):
    """Draws one engine. `link` is joined already; `reopen` reconnects after it broke, if that makes sense.

    `make_forecast` says what staged knobs would do; `why_ended` says more about an engine that is gone; `recorder`
    writes recordings of it.
    """

    CSS_PATH: ClassVar[str] = str(Path(__file__).with_name("console.tcss"))
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    ESCAPE_TO_MINIMIZE: ClassVar[bool] = False
    MODE: ClassVar[str] = LIVE
    VIEW: ClassVar[type[View]] = View
    LIVE_SCREEN: ClassVar[type[LiveScreen]] = LiveScreen

    def __init__(
        self,
        link: Link,
        options: ConsoleOptions | None = None,
        reopen: Callable[[], Link] | None = None,
        now: Callable[[], float] = time.monotonic,
        make_forecast: MakeForecast | None = None,
        why_ended: Callable[[], str | None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.options = options if options is not None else ConsoleOptions()
        no_color = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if no_color else None)
        self.history, self.feed = self._open(link, reopen, now)
        self.themes, failures = load_themes(self.options.config_dir and self.options.config_dir / "themes")
        for theme in self.themes.values():
            self.register_theme(textual_theme(theme))
        self.view = self.VIEW(
            history=self.history,
            options=self.options,
            palette=self._palette(self._first_theme(no_color)),
            glyphs=ASCII if self.options.ascii else UNICODE,
            now=now,
            window_s=self.options.window_s,
        )
        self._notices = [f"theme {failure.path} skipped: {failure.reason}" for failure in failures]
        if self.options.notice:
            self._notices.insert(0, self.options.notice)
        for words in self._notices:
            self.history.note(Notice("warning", words))
        keymap = load_keymap(self.options.config_dir / "keys.toml") if self.options.config_dir else {}
        self.registry = Registry(keymap, self.MODE)
        self.feed.why_ended = why_ended
        self.forecaster = Forecaster(self.history, make_forecast, self._on_change)
        self.staging = self._open_staging()
        self.staging.forecaster = self.forecaster
        self.guide = Guide(self.view, self.staging, self.options.guide)
        self.live_screen = self.LIVE_SCREEN(self.view, self.registry, self.staging)
        self.live_screen.commands = live_commands(self.live_screen)
        slos = {"ttft": self.options.ttft_slo_s, "itl": self.options.itl_slo_s}
        self.slos_s = {kind: limit_s for kind, limit_s in slos.items() if limit_s is not None}
        self.trials = FollowedTrials(self.history, now)
        bounds = Bounds(self.options.ttft_slo_s, self.options.itl_slo_s)
        self.explain = self._open_watch(bounds)
        self.recordings = Recordings(recorder, self.view, lambda words, role: self.front.say(words, role))
        self.output_dir = self.options.output_dir or Path.cwd()
        self.mouse_on = self.options.mouse
        self._replies: dict[int, Callable[[Reply], None]] = {}
        self._painted_at_s = -1e9
        self.next_frame: asyncio.TimerHandle | None = None
        self._resend: asyncio.TimerHandle | None = None
        self._painted_seq = 0

    def get_driver_class(self) -> type[Driver]:
        """The console's own in place of Textual's for terminals."""
        usual = super().get_driver_class()
        return ConsoleDriver if usual is LinuxDriver else usual

    # What another kind of console does otherwise

    def _open(
        self, link: Any, reopen: Callable[[], Link] | None, now: Callable[[], float]
    ) -> tuple[Past, Commanded]:
        history = History()
        return history, Feed(link, history, self._on_change, self._on_reply, reopen, now)

    def _open_staging(self) -> Staging:
        return Staging(self.history)

    def _open_watch(self, bounds: Bounds) -> Watch:
        return Watch(self.history, bounds)

    def extra_commands(self, screen: ConsoleScreen) -> tuple[Commands, ...]:
        """Hands that every screen has before its own."""
        return ()

    @property
    def ascii_only(self) -> bool:
        return self.options.ascii

    # Life

    def on_mount(self) -> None:
        self.theme = self.view.palette.theme.name
        self.set_class(self.ascii_only, "ascii")
        self.push_screen(self.live_screen)
        if self._notices:
            self.call_after_refresh(self.live_screen.say, self._notices[0], "warn")
        self._watch_signals()
        self.set_interval(TICK_S, self._tick)
        self.feed.start()

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._end_by, number)
            except (NotImplementedError, RuntimeError, ValueError):
                return  # not the main thread: whoever runs this app handles signals

    def _end_by(self, number: int) -> None:
        self.exit(return_code=128 + number)

    async def on_unmount(self) -> None:
        if self.options.embedded and not self.options.read_only:
            # The engine lives for this console alone: what is in flight need not be waited for.
            self.feed.send(Drain(self.feed.next_command(), now=True))
        self.feed.close()

    def _fatal_error(self) -> None:
        """Report where a bug is, but not the values of variables, which may be prompts."""
        if self._exception is not None:
            self._exit_renderables.append(Text("".join(traceback.format_exception(self._exception))))
        self._close_messages_no_wait()

    # Data

    def _on_change(self) -> None:
        if self._running:
            self.post_message(DataArrived())

    def _on_reply(self, reply: Reply) -> None:
        if self._running:
            self.post_message(ReplyReceived(reply))

    def on_data_arrived(self, message: DataArrived) -> None:
        if self.next_frame is None:
            wait_s = max(0.0, self._painted_at_s + self.options.paint_every_s - time.monotonic())
            # The loop's own timer: one of Textual's would cost as much as a panel, ten times a second.
            self.next_frame = asyncio.get_running_loop().call_later(wait_s, self.paint_frame)

    def paint_frame(self) -> None:
        """What came since the last frame; frames that keys cause neither bring the next one closer nor put it off."""
        self.next_frame = None
        if self._running and isinstance(self._driver, ConsoleDriver) and self._driver.busy:
            self.next_frame = asyncio.get_running_loop().call_later(RESEND_S, self.paint_frame)
        elif self._running:
            view = self.view
            view.frame += 1
            seq, self._painted_seq = self._painted_seq, self.history.live.seq
            num = abs(self._painted_seq - seq)
            view.every = next((every for least, every in UNHURRIED if num >= least), 1)
            self.paint()
            view.every = 1

    def on_reply_received(self, message: ReplyReceived) -> None:
        replied = self._replies.pop(message.reply.command, None)
        if replied is not None:
            replied(message.reply)
            self.paint()

    def paint(self) -> None:
        """Take up what the feed brought and draw it."""
        self._painted_at_s = time.monotonic()
        self.feed.looked()
        if self.feed.never_began:
            self.exit()  # whoever started it says why
            return
        self.take_status()
        if not self.view.keyed:  # a look takes longer than a key should wait
            self._take_findings()
        self.view.trial = self.trials.pending
        self.view.guide = self.guide.words(reading=self.front.EXPLAINS)
        outcome = self.trials.take_outcome()
        if outcome is not None:
            self.front.say(outcome.text, "ok" if outcome.level == "info" else "warn")
        self.front.paint()
        if self.screen_stack[-1:] == [self.front] and isinstance(self.focused, Panel):
            self.cursor_position = self.focused.cursor_place
        if self.screen_stack[-1:] == [self.front] and self.screen._dirty_widgets:
            self.screen._on_timer_update()  # now: Textual's timer would let it wait for up to 16 ms

    def answer_key(self, action: str) -> None:
        """Draw what a key was meant for; the rest follows with the frame that is due, or now if none is."""
        self.view.keyed = self.next_frame is not None and self.front is self.live_screen
        self.view.turned = action in TURNS
        self.paint()
        self.view.keyed = self.view.turned = False

    @property
    def front(self) -> ConsoleScreen:
        """The topmost of our own screens; dialogs may cover it."""
        screens = (screen for screen in reversed(self.screen_stack) if isinstance(screen, ConsoleScreen))
        return next(screens, self.live_screen)

    def back_to_live(self, action: str) -> None:
        """Return to the Live screen and carry out an action that only it knows."""
        while self.screen is not self.live_screen and len(self.screen_stack) > 1:
            self.pop_screen()
        self.live_screen.call_after_refresh(self.live_screen.action_act, action)

    def show_request(self, number: int) -> None:
        """Open the screen of one request."""
        # Screens that are opened later are loaded then: the first frame does not wait for them.
        from schedtop.console.screens.request import RequestScreen

        self.push_screen(RequestScreen(self.view, self.registry, number))

    def next_request(self, offset: int) -> int | None:
        self.live_screen.requests.next_match(offset)
        return self.live_screen.requests.selected

    def shown_steps(self) -> list[StepRecord]:
        return self.live_screen.batch_panel.shown_steps()

    def show_knobs(self) -> None:
        """Open the Knobs screen."""
        from schedtop.console.screens.knobs import KnobsScreen

        if not isinstance(self.screen, KnobsScreen):
            self.push_screen(KnobsScreen(self.view, self.registry, self.staging))

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """As Textual's, but only cells that changed are written, and not before the terminal can show them."""
        driver = self._driver
        plain = isinstance(renderable, ChopsUpdate | LayoutUpdate) and isinstance(driver, ConsoleDriver)
        if not plain or self._batch_count or not self._running or self._closed:
            super()._display(screen, renderable)
            return
        assert isinstance(renderable, ChopsUpdate | LayoutUpdate) and isinstance(driver, ConsoleDriver)
        colours = self.console._color_system or ColorSystem.TRUECOLOR
        driver.frames.take(renderable, (self.size.width, self.size.height), colours)
        self._send_frame()
        self.post_display_hook()

    def _send_frame(self) -> None:
        """Write the newest frame as soon as the terminal can take it."""
        driver = self._driver
        if not isinstance(driver, ConsoleDriver) or not self._running:
            return
        if driver.busy:
            if self._resend is None:
                self._resend = asyncio.get_running_loop().call_later(RESEND_S, self._send_again)
            return
        begin, end = (SYNC_START, SYNC_END) if self._sync_available else ("", "")
        driver.send_frame(self.screen.outer_size.clamp_offset(self.cursor_position), begin, end)

    def _send_again(self) -> None:
        self._resend = None
        self._send_frame()

    def _tick(self) -> None:
        """Let the age of the data count on while nothing arrives."""
        if isinstance(self._driver, ConsoleDriver) and self._driver.has_hung_up():
            self._end_by(signal.SIGHUP)  # which is not sent to everybody
            return
        self.recordings.look()
        if time.monotonic() - self._painted_at_s > TICK_S * 0.9:
            self.paint()

    def take_status(self) -> None:
        """The state of the link now."""
        view = self.view
        view.link, view.received_at_s = self.feed.status, self.feed.received_at_s
        view.behind_s = self.feed.behind_s
        view.lag_s = self._driver.lag_s if isinstance(self._driver, ConsoleDriver) else 0.0
        if view.palette.faded != (view.stale and view.pinned is None):
            view.palette = self._palette(view.palette.theme, faded=not view.palette.faded)

    def _take_findings(self) -> None:
        """Look for symptoms, at most once a second."""
        with self.history.lock:
            self.explain.look_if_due(self.view)
            keys = self.registry["explain"].keys
            self.view.findings = self.explain.entries
            self.view.badge = self.explain.badge(key_name(keys[0]) if keys else "")

    def open_explain(self, finding: str | None = None) -> None:
        """Show the findings, one of them selected."""
        from schedtop.console.screens.explain import ExplainScreen

        if not isinstance(self.screen, ExplainScreen):
            self.push_screen(ExplainScreen(self.view, self.registry, self.explain, self.forecaster, self.staging))
        if finding is not None and isinstance(self.screen, ExplainScreen):
            self.screen.findings.choose(finding)

    def command(self, make: Callable[[int], Incoming], replied: Callable[[Reply], None]) -> None:
        """Send a command; `replied` gets the answer, also when it could not be sent."""
        number = self.feed.next_command()
        self._replies[number] = replied
        problem = self.feed.send(make(number))
        if problem is not None:
            self._replies.pop(number, None)
            replied(Reply(number, False, problem, self.history.live.knobs_version))

    # Looks

    def _first_theme(self, no_color: bool) -> Theme:
        wanted = self.options.theme
        if no_color:
            wanted = "monochrome"
        elif wanted is None and self.console.color_system == "standard":
            wanted = "ansi"
        return self.themes.get(wanted or DEFAULT, self.themes[DEFAULT])

    def _palette(self, theme: Theme, faded: bool = False) -> Palette:
        return Palette(theme, solid=not self.options.ascii, faded=faded)

    def next_theme(self) -> str:
        """Switch to the theme after the present one; its title."""
        names = sorted(self.themes)
        theme = self.themes[names[(names.index(self.view.palette.theme.name) + 1) % len(names)]]
        self.theme = theme.name
        self.view.palette = self._palette(theme, self.view.palette.faded)
        return theme.title

    def toggle_mouse(self) -> bool:
        """Take or leave the terminal's mouse; whether it is taken now."""
        self.mouse_on = not self.mouse_on
        if isinstance(self._driver, ConsoleDriver):
            self._driver.take_mouse(self.mouse_on)
        return self.mouse_on

    def screen_strips(self) -> list[Strip]:
        """The lines of the screen as they are drawn."""
        return self.screen._compositor.render_strips()


def collect_garbage_rarely() -> None:
    """Thousands of kept records make every full collection slow, and none of them is ever garbage in a cycle."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def let_keys_in() -> None:
    """The feed's thread is often busy: a key should not wait five milliseconds for its turn."""
    sys.setswitchinterval(0.001)


def run_console(
    link: Link,
    options: ConsoleOptions,
    reopen: Callable[[], Link] | None = None,
    *,
    make_forecast: MakeForecast | None = None,
    why_ended: Callable[[], str | None] | None = None,
    recorder: Recorder | None = None,
) -> int:
    """Run the console until it is left; the exit code. Raises `ActionError` for a bad `keys.toml`.

    The user's themes, keys and presets are in the platform's settings folder unless `options` names another.
    """
    if options.config_dir is None:
        options = replace(options, config_dir=user_config_path("schedtop"))
    app = ConsoleApp(link, options, reopen, make_forecast=make_forecast, why_ended=why_ended, recorder=recorder)
    collect_garbage_rarely()
    let_keys_in()
    app.run(mouse=options.mouse)
    return app.return_code or 0
