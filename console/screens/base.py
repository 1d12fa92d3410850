"""What every full screen of the console shares: keys through the registry, a footer that talks, painting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from rich.text import Text
from schedtop.console.actions import Registry
from schedtop.console.drawing import layout, text
from schedtop.console.guide import Guide
from schedtop.console.knobs.forecast import Forecaster
from schedtop.console.knobs.trial import FollowedTrials
from schedtop.console.recordings import Recordings
from schedtop.console.view import View
from schedtop.console.widgets.bars import FooterBar
from schedtop.engine.contract.commands import Incoming
from schedtop.engine.contract.telemetry import Reply, StepRecord
from textual.events import Blur, Focus, Key
from textual.screen import Screen
from textual.widgets import Static

if TYPE_CHECKING:
    from schedtop.console.widgets.prompt import Prompt
    from textual.strip import Strip
    from textual.widget import Widget

SAID_S = 6.0


class Commands(Protocol):
    """Carries out some of the actions: one method `do_ID` per action."""

    def why_not(self, name: str) -> str | None:
        """Why an action cannot be taken now; None if it can, or if it is not one of these."""
        ...


class Console(Protocol):
    """What screens ask of the application beside Textual's own."""

    output_dir: Path
    forecaster: Forecaster
    guide: Guide
    trials: FollowedTrials
    slos_s: dict[str, float]
    recordings: Recordings

    def take_status(self) -> None:
        """Note the state of the link now."""
        ...

    @property
    def front(self) -> ConsoleScreen:
        """The topmost of our own screens; dialogs may cover it."""
        ...

    def extra_commands(self, screen: ConsoleScreen) -> tuple[Commands, ...]:
        """Hands that every screen has before its own."""
        ...

    def answer_key(self, action: str) -> None: ...

    def back_to_live(self, action: str) -> None: ...

    def command(self, make: Callable[[int], Incoming], replied: Callable[[Reply], None]) -> None: ...

    def open_explain(self, finding: str | None = None) -> None:
        """Show the findings, one of them selected."""
        ...

    def show_knobs(self) -> None: ...

    def show_request(self, number: int) -> None: ...

    def next_request(self, offset: int) -> int | None:
        """Select a neighbour in the order of the Live screen's table; its number."""
        ...

    def shown_steps(self) -> Sequence[StepRecord]:
        """The steps in sight on the Live screen."""
        ...

    def screen_strips(self) -> list[Strip]: ...

    def next_theme(self) -> str: ...

    def toggle_mouse(self) -> bool: ...


class TooSmall(Static):
    """In place of everything where the terminal is too small: what is needed, what there is."""

    def __init__(self) -> None:
        super().__init__("", id="small")

    def tell(self, width: int, height: int) -> None:
        self.display = layout.mode(width, height) == "small"
        least = layout.STRIP
        words = f"schedtop needs {least[0]}x{least[1]}\nthis terminal is {width}x{height}\n\nq quits"
        self.update(Text(words if self.display else "", justify="center"))


class ConsoleScreen(Screen[None]):
    """A screen over the shared view. Subclasses say in `commands` who carries out actions, first come first served.

    An action that none of them knows belongs to the Live screen, which then comes back.
    """

    EXPLAINS: ClassVar[bool] = False
    """Its findings are being read."""

    def __init__(self, view: View, registry: Registry, scope: str = "") -> None:
        super().__init__()
        self.view, self.registry = view, registry
        self.footer = FooterBar(view, registry, id="footer")
        self.footer.scope = scope
        self.commands: tuple[Commands, ...] = ()
        self._saying = 0

    @property
    def console(self) -> Console:
        """The app, as what it is to screens."""
        return cast(Console, self.app)

    @property
    def scope(self) -> str:
        """Whose keys hold beside the global ones."""
        return self.footer.scope

    def paint(self) -> None:
        """Draw everything from the view as it is now."""
        raise NotImplementedError

    def set_focus(self, widget: Widget | None, scroll_visible: bool = False, from_app_focus: bool = False) -> None:
        """As Textual's, but quietly: no style depends on the focus, so nothing else has to be drawn again."""
        before = self.focused
        if widget is before or (widget is not None and not widget.focusable):
            return
        self.set_reactive(Screen.focused, widget)
        if before is not None:
            before.post_message(Blur())
        if widget is not None:
            widget.post_message(Focus(from_app_focus=from_app_focus))
        self.focus_moved()

    def focus_moved(self) -> None:
        """What depends on the focus follows at once: the next key may be here already."""

    def on_screen_resume(self) -> None:
        self.paint()

    # Keys

    @property
    def typing(self) -> bool:
        """True while keys are text for a prompt."""
        return self.open_prompt is not None

    @property
    def open_prompt(self) -> Prompt | None:
        """The prompt that keys are text for; None while there is none."""
        return None

    def on_key(self, event: Key) -> None:
        # Not to be overridden: Textual calls the handler of every class in line.
        # Keys that were on their way when an earlier one turned to a prompt or another screen are meant for that.
        if self.app.screen is not self:
            self._pass_on(event, self.app.screen)
            return
        prompt = self.open_prompt
        if prompt is not None:
            if event is not prompt.heard:
                self._pass_on(event, prompt)
            return
        action = self.registry.find(event.key, self.scope)
        if action is None and event.character is not None:
            action = self.registry.find(event.character, self.scope)
        if action is not None:
            event.stop()
            event.prevent_default()
            self.action_act(action.id)
        elif reason := self.registry.why_nothing(event.key):
            self.say(reason, "warn")
        elif event.character is not None and event.character.isalpha() and not event.character.isascii():
            self.say(f"{event.character}: the keys are Latin letters; switch the keyboard layout", "warn")

    def _pass_on(self, event: Key, to: Widget) -> None:
        event.stop()
        event.prevent_default()
        to._forward_event(Key(event.key, event.character).set_sender(self.app))

    @property
    def hands(self) -> tuple[Commands, ...]:
        """Who carries out actions here, the app's own ones before the screen's."""
        return (*self.console.extra_commands(self), *self.commands)

    def action_act(self, name: str) -> None:
        """Carry out an action by id, or say why it is off; repaint at once."""
        self.unsay()
        handler = next((part for part in self.hands if hasattr(part, f"do_{name}")), None)
        if handler is None:
            self.console.back_to_live(name)
            return
        self.console.take_status()  # what is drawn at a change of size comes before the first frame
        reason = self.why_not(name)
        if reason is not None:
            self.say(f"{self.registry[name].title}: {reason}", "warn")
            return
        with self.view.history.lock:
            getattr(handler, f"do_{name}")()
        self.console.answer_key(name)

    def why_not(self, name: str) -> str | None:
        """Why an action cannot be taken now; None if it can."""
        return next((reason for part in self.hands if (reason := part.why_not(name)) is not None), None)

    # Saying things

    def say(self, words: str, role: str = "text") -> None:
        """Show one line in place of the footer for a few seconds."""
        self.footer.said = (text.clean(words), role)
        self._saying += 1
        turn = self._saying
        self.set_timer(SAID_S, lambda: self.unsay() if turn == self._saying else None)
        self._paint_footer()

    def unsay(self) -> None:
        if self.footer.said is not None:
            self.footer.said = None
            self._paint_footer()

    def _paint_footer(self) -> None:
        with self.view.history.lock:
            self.footer.paint()

    # What help and copying are about

    def help_page(self) -> tuple[str, str]:
        """Title and words of what help explains first."""
        return "schedtop", ""

    def copied_line(self) -> str:
        """The selected line as plain text; empty where nothing is selected."""
        return ""
