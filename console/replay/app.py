"""The console over a recording: the Live screen with a timeline, driven by a player instead of an engine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

from platformdirs import user_config_path
from schedtop.console.actions import REPLAY
from schedtop.console.app import ConsoleApp
from schedtop.console.drawing import text
from schedtop.console.explain.watch import Watch
from schedtop.console.explain.window import Bounds
from schedtop.console.feed import Commanded
from schedtop.console.knobs.forecast import MakeForecast
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.console.past.recorded.source import RecordedSource
from schedtop.console.replay.commands import ReplayCommands
from schedtop.console.replay.findings import ReplayWatch
from schedtop.console.replay.jumps import Jumps
from schedtop.console.replay.player import Player
from schedtop.console.replay.rerun.overlay import Overlay
from schedtop.console.replay.rerun.runs import Begin, Reruns
from schedtop.console.replay.rerun.screen import RerunScreen
from schedtop.console.replay.staged_rerun import ReplayStaging
from schedtop.console.replay.timeline import TimelineBar
from schedtop.console.screens.base import Commands, ConsoleScreen
from schedtop.console.screens.live import LiveScreen
from schedtop.console.view import LinkStatus, View
from schedtop.engine.contract.commands import Incoming

READ_S = 0.015
"""A frame's share for reading on in the recording."""


class ReplayView(View):
    """A view of a recording: to show a step is to go there."""

    def pin(self, seq: int) -> bool:
        index = cast(RecordedHistory, self.history).index_of(seq)
        if index is None:
            return False
        self.go(index)
        self.look()
        return True

    def release(self) -> None:
        self.look()

    go: Callable[[int], None]


class ReplayScreen(LiveScreen):
    """The Live screen and, over its footer, the timeline."""

    TIMELINE: ClassVar[bool] = True

    def add_timeline(self, player: Player) -> None:
        """Must be called before the screen is shown."""
        self.timeline = TimelineBar(self.view, player, id="timeline")
        self.bars = (*self.bars, self.timeline)


class PlayerFeed(Commanded):
    """In the place of a feed: nothing comes, and nothing can be sent."""

    def __init__(self) -> None:
        self.status = LinkStatus("replay")
        self.received_at_s = self.why_ended = None
        self.behind_s = 0.0

    def start(self) -> None:
        """Nothing to start: the app plays."""

    def close(self) -> None:
        """The source is its opener's to close."""

    def looked(self) -> None:
        """Nothing comes by itself."""

    def next_command(self) -> int:
        return 0

    def send(self, command: Incoming) -> str | None:
        return "this is a recording"


class ReplayApp(ConsoleApp):
    """Plays `source`. It begins at its first step, playing unless `paused`.

    `damage` is what the source raises for a stretch that cannot be read: a line for the operator, not a crash.
    `rerun` begins runs with other knobs; `make_forecast` says what staged ones would do from the shown step.
    """

    CSS_PATH: ClassVar[str] = "../console.tcss"
    MODE: ClassVar[str] = REPLAY
    VIEW: ClassVar[type[View]] = ReplayView
    LIVE_SCREEN: ClassVar[type[LiveScreen]] = ReplayScreen
    history: RecordedHistory
    staging: ReplayStaging

    def __init__(
        self,
        source: RecordedSource,
        options: ConsoleOptions | None = None,
        now: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
        paused: bool = False,
        damage: type[Exception] = OSError,
        rerun: Begin | None = None,
        make_forecast: MakeForecast | None = None,
    ) -> None:
        super().__init__(cast(Any, source), options, None, now, make_forecast)
        self.reruns = Reruns(rerun, self._on_change)
        self.overlay = Overlay()
        self._reported: object = None
        self.damage = damage
        self.player = Player(self.history, now, speed)
        self.jumps = Jumps(self.player, self.options.ttft_slo_s, self.options.itl_slo_s)
        cast(ReplayView, self.view).go = self.player.move
        cast(ReplayScreen, self.live_screen).add_timeline(self.player)
        if not paused:
            self.player.play()
        self.view.replay = self.player.status()

    def _open(self, link: Any, reopen: Any, now: Callable[[], float]) -> tuple[RecordedHistory, Commanded]:
        return RecordedHistory(link), PlayerFeed()

    def _open_staging(self) -> ReplayStaging:
        return ReplayStaging(self.history)

    def _open_watch(self, bounds: Bounds) -> Watch:
        return ReplayWatch(self.history, bounds)

    def open_explain(self, finding: str | None = None) -> None:
        with self.history.lock:
            self.player.pause()
            self.explain.look(self.view)
        super().open_explain(finding)

    def show_rerun(self, words: str = "") -> None:
        """Open the re-run screen over whatever is shown; `words` say what is being run."""
        while not isinstance(self.screen, RerunScreen) and self.screen is not self.live_screen:
            self.pop_screen()
        if not isinstance(self.screen, RerunScreen):
            self.push_screen(RerunScreen(self.view, self.registry, self.player, self.reruns, self.overlay))
        if words:
            cast(RerunScreen, self.front).progress.words = words

    def extra_commands(self, screen: ConsoleScreen) -> tuple[Commands, ...]:
        return (ReplayCommands(screen, self),)

    def on_mount(self) -> None:
        self.set_interval(self.options.paint_every_s, self.play_on)
        truncated = self.player.history.source.truncated
        if truncated is not None:
            self.call_after_refresh(self.live_screen.say, f"incomplete: {truncated}", "warn")

    def play_on(self) -> None:
        """Take up what is due, and draw it."""
        if not self.live_screen.is_mounted:
            return
        with self.history.lock:
            try:
                moved = self.player.advance()
                read = self.history.ladder.read_on(READ_S)
            except self.damage as error:
                self._tell_damage(error)
                moved = read = True
            timeline = cast(ReplayScreen, self.live_screen).timeline
        reading = cast(ReplayWatch, self.explain).is_due(self.view.now())
        if moved or read or reading or self.player.playing or not timeline.timeline.done:
            self.paint()

    def paint(self) -> None:
        self.view.replay = self.player.status()
        self._tell_rerun()
        try:
            super().paint()
        except self.damage as error:
            self._tell_damage(error)

    def _tell_rerun(self) -> None:
        """A run may come to its end while the operator looks at something else."""
        ended = self.reruns.failed or self.reruns.outcome
        if ended and ended is not self._reported:
            self._reported = ended
            if not isinstance(self.front, RerunScreen):
                failed = f"re-run failed: {self.reruns.failed}"
                self.front.say(failed if self.reruns.failed else "re-run finished: v shows it", "ok")

    async def on_unmount(self) -> None:
        self.reruns.cancel()

    def _tell_damage(self, error: Exception) -> None:
        self.player.pause()
        self.view.replay = self.player.status()
        self.live_screen.say(text.clean(error), "breach")


def run_replay(
    source: RecordedSource,
    options: ConsoleOptions,
    speed: float,
    paused: bool,
    at: str | None,
    damage: type[Exception],
    rerun: Begin | None = None,
    make_forecast: MakeForecast | None = None,
) -> int:
    """Replay a recording until the console is left; the exit code. The last three are as for `ReplayApp`.

    Raises `JumpError` where `at` is not a place, `ActionError` for a bad `keys.toml`.
    """
    if options.config_dir is None:
        options = replace(options, config_dir=user_config_path("schedtop"))
    stopped = paused or at is not None
    app = ReplayApp(
        source, options, speed=speed, paused=stopped, damage=damage, rerun=rerun, make_forecast=make_forecast
    )
    if at is not None:
        app.jumps.go(at)
        if not paused and not app.player.ended:
            app.player.play()
    # Records are a great many objects without cycles: looking for some would be half the time of a jump.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    app.run(mouse=options.mouse)
    return app.return_code or 0
