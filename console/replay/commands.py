"""What the keys of a replay do, on every screen. One short method per action, named after its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from schedtop.console.actions import key_name
from schedtop.console.drawing import text
from schedtop.console.replay.jumps import HINT, JumpError, Jumps, understood
from schedtop.console.replay.player import SPEEDS, Player
from schedtop.console.replay.rerun.runs import Reruns
from schedtop.console.replay.staged_rerun import ReplayStaging
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.screens.live import LiveScreen
from schedtop.engine.contract.telemetry import Snapshot


class Replay(Protocol):
    """What the keys of a replay ask of the application."""

    player: Player
    jumps: Jumps
    reruns: Reruns
    live_screen: LiveScreen
    damage: type[Exception]

    @property
    def staging(self) -> ReplayStaging: ...

    def show_rerun(self, words: str = "") -> None: ...

    def paint(self) -> None: ...


class ReplayCommands:
    """The hands of any screen for moving through the recording."""

    def __init__(self, screen: ConsoleScreen, app: Replay) -> None:
        self.screen, self.app = screen, app

    @property
    def player(self) -> Player:
        return self.app.player

    @property
    def jumps(self) -> Jumps:
        return self.app.jumps

    def why_not(self, name: str) -> str | None:
        match name:
            case "play" | "replay_end" | "replay_start" | "jump" if self.player.last < 0:
                return "the recording has no steps"
            case "faster" if self.player.speed >= SPEEDS[-1]:
                return f"{self.player.speed:g}x is the fastest"
            case "slower" if self.player.speed <= SPEEDS[0]:
                return f"{self.player.speed:g}x is the slowest"
            case "rerun_step" | "rerun_start":
                return self._why_no_rerun(from_step=name == "rerun_step")
            case "knob_rerun" if self.app.staging.staged:
                return self._why_no_rerun(from_step=True)
            case "rerun_show" if not (self.app.reruns.outcome or self.app.reruns.doing or self.app.reruns.failed):
                return "no re-run yet"
        return None

    def _why_no_rerun(self, *, from_step: bool) -> str | None:
        staging = self.app.staging
        if not self.app.reruns.possible:
            return "this recording cannot be re-run"
        if not staging.staged:
            return "stage a change first (6, then +, - or =)"
        if from_step and (names := staging.start_only()):
            keys = " ".join(key_name(key) for key in self.screen.registry["rerun_start"].keys)
            return f"{', '.join(names)} can only be set at start-up: {keys} re-runs from the start"
        if from_step and self.player.history.position >= self.player.last:
            return "this is the last step"
        return None

    def do_rerun_step(self) -> None:
        history = self.player.history
        self._rerun(history.position, history.live.snapshot(), f"from step {history.live.step}")

    def do_rerun_start(self) -> None:
        self._rerun(None, None, "from the start")

    def _rerun(self, index: int | None, snapshot: Snapshot | None, where: str) -> None:
        self.player.pause()
        staged = dict(self.app.staging.staged)
        try:
            self.app.reruns.begin(staged, index, snapshot)
        except OSError as error:
            self.screen.say(f"cannot start a process: {error.strerror or error}", "breach")
            return
        values = ", ".join(f"{name}={text.value(value)}" for name, value in staged.items())
        self.app.show_rerun(f"{values} {where}")

    def do_rerun_show(self) -> None:
        self.app.show_rerun()

    def do_knob_rerun(self) -> None:
        self.screen.action_act("rerun_step" if self.app.staging.staged else "knob_type")

    def do_play(self) -> None:
        if self.player.playing:
            self.player.pause()
        else:
            self._try(self.player.play)

    def do_replay_back(self) -> None:
        self._step(-1)

    def do_replay_forward(self) -> None:
        self._step(1)

    def do_step_back(self) -> None:
        self._along(-1)

    def do_step_forward(self) -> None:
        self._along(1)

    def _along(self, direction: int) -> None:
        batch = self.app.live_screen.batch_panel
        if batch.shows_steps:
            self._step(direction * self.screen.view.steps_per_column)
        else:
            batch.look_along(direction)

    def _step(self, offset: int) -> None:
        def step() -> None:
            if not self.player.step(offset):
                raise JumpError("the recording ends here" if offset > 0 else "the recording begins here")

        self._try(step)

    def do_slower(self) -> None:
        self.player.set_speed(-1)

    def do_faster(self) -> None:
        self.player.set_speed(1)

    def do_event_back(self) -> None:
        self._try(lambda: self.jumps.jump(self.jumps.kind, forward=False))

    def do_event_forward(self) -> None:
        self._try(lambda: self.jumps.jump(self.jumps.kind, forward=True))

    def do_event_kind(self) -> None:
        self.screen.say(f"{{ and }} go to: {self.jumps.next_kind()}")

    def do_replay_start(self) -> None:
        self._try(lambda: self.player.move(0))

    def do_replay_end(self) -> None:
        self.player.pause()
        self._try(lambda: self.player.move(self.player.last))

    def do_jump(self) -> None:
        live = self.app.live_screen

        def done(words: str | None) -> None:
            if words and words.strip():
                with self.screen.view.history.lock:
                    self._try(lambda: self.jumps.go(words))
            live.set_focus(live.focused_panel)
            self.app.paint()

        def wrong(words: str) -> str:
            try:
                understood(words)
            except JumpError as error:
                return str(error).partition(": ")[2]
            return ""

        if self.screen is not live:
            self.screen.console.back_to_live("jump")
            return
        live.prompt.on_help = None
        live.prompt.ask(f"jump to: {HINT}", "", done, wrong=wrong)

    def _try(self, move: Callable[[], str | None]) -> None:
        """Move, and say what it says, or why it cannot be."""
        try:
            words = move()
        except JumpError as error:
            self.screen.say(text.clean(error), "warn")
        except self.app.damage as error:
            self.screen.say(text.clean(error), "breach")
        else:
            if words:
                self.screen.say(words, "ok")
