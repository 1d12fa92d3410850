"""The Live screen: composes the panels, places them, and carries out actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from schedtop.console import layout, text
from schedtop.console.actions import Registry
from schedtop.console.desk import KnobDesk
from schedtop.console.screens.commands import Commands
from schedtop.console.view import View
from schedtop.console.widgets.banner import BannerBar, banner
from schedtop.console.widgets.bars import Divider, FooterBar, TabBar, Ticker
from schedtop.console.widgets.batch import BatchPanel
from schedtop.console.widgets.events import EventsPanel
from schedtop.console.widgets.header import HeaderBar
from schedtop.console.widgets.knobs import KnobsPanel
from schedtop.console.widgets.kv import KvPanel
from schedtop.console.widgets.latency import LatencyPanel
from schedtop.console.widgets.panel import Drawn, Panel
from schedtop.console.widgets.prompt import Prompt
from schedtop.console.widgets.queue import QueuePanel
from schedtop.console.widgets.requests import RequestsPanel
from textual.screen import Screen
from textual.widgets import Static

if TYPE_CHECKING:
    from schedtop.console.app import ConsoleApp
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Key, Resize

SAID_S = 6.0


class LiveScreen(Screen[None]):
    """Panels over one view. Keys go through the registry; telemetry repaints when the app says so."""

    AUTO_FOCUS: ClassVar[str | None] = None

    def __init__(self, view: View, registry: Registry, desk: KnobDesk) -> None:
        super().__init__()
        self.view, self.registry, self.desk = view, registry, desk
        self.commands = Commands(self)
        self.batch_panel = BatchPanel(view, id="batch")
        self.kv = KvPanel(view, id="kv")
        self.requests = RequestsPanel(view, id="requests")
        self.latency = LatencyPanel(view, id="latency")
        self.queue = QueuePanel(view, id="queue")
        self.knobs = KnobsPanel(view, desk, id="knobs")
        self.events = EventsPanel(view, id="events")
        listed = (self.batch_panel, self.kv, self.requests, self.latency, self.queue, self.knobs, self.events)
        self.panels: dict[str, Panel] = {str(panel.id): panel for panel in listed}
        self.header = HeaderBar(view, id="header")
        self.footer = FooterBar(view, registry, id="footer")
        self.tabs = TabBar(view, self.panels, id="tabs")
        self.banner = BannerBar(view, id="banner")
        ticker = Ticker(view, self.events, id="ticker")
        self.bars: tuple[Drawn, ...] = (self.banner, self.tabs, ticker, Divider(view, id="divider"))
        self.prompt = Prompt(id="prompt")
        self.tab = "requests"
        self.zoomed: str | None = None
        self._placed: tuple[object, ...] = ()
        self._saying = 0
        self._last_panel: Panel | None = None

    @property
    def console(self) -> ConsoleApp:
        """The app, as what it is."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.header
        yield from self.panels.values()
        yield from self.bars
        yield self.footer
        yield self.prompt
        yield Static("", id="small")

    def on_mount(self) -> None:
        self.place()
        self.set_focus(self.requests)

    def on_resize(self, event: Resize) -> None:
        self.place()

    # Painting

    def paint(self) -> None:
        """Draw every visible panel from the view as it is now."""
        with self.view.history.lock:
            self.view.look()
            self.place()
            for widget in (self.header, *self.panels.values(), *self.bars, self.footer):
                widget.paint()

    def place(self) -> None:
        """Put every widget where the size, the tab, the zoom and the banner say."""
        width, height = self.app.size
        told = banner(self.view) is not None
        key = (width, height, self.tab, self.zoomed, told)
        if key == self._placed:
            return
        self._placed = key
        small = layout.mode(width, height) == "small"
        self._tell_small(small, width, height)
        places = layout.arrange(width, height, self.tab, self.zoomed, told)
        tabbed = "tabs" in places
        self.tabs.tab = self.tab
        for widget in (self.header, *self.panels.values(), *self.bars, self.footer):
            place = places.get(str(widget.id))
            widget.display = place is not None
            if isinstance(widget, Panel):
                widget.show_rule = not (tabbed and widget.id == self.tab)
            if place is not None:
                widget.styles.width, widget.styles.height = place.width, place.height
                widget.styles.offset = (place.x, place.y)

    def _tell_small(self, small: bool, width: int, height: int) -> None:
        note = self.query_one("#small", Static)
        note.display = small
        least = layout.STRIP
        words = f"schedtop needs {least[0]}x{least[1]}\nthis terminal is {width}x{height}\n\nq quits"
        note.update(Text(words if small else "", justify="center"))

    # Focus

    @property
    def focused_panel(self) -> Panel | None:
        """The panel that has the focus, or had it before the prompt took it."""
        if isinstance(self.focused, Panel):
            self._last_panel = self.focused
        return self._last_panel

    def show_panel(self, name: str) -> None:
        """Bring a panel into sight and give it the focus."""
        mode = layout.mode(*self.app.size)
        if self.zoomed is not None or (mode == "strip" and name in layout.TABS):
            self.zoomed = name
        elif mode == "compact" and name in layout.TABS:
            self.tab = name
        self.place()
        self.set_focus(self.panels[name])
        self.paint()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        panel = self.focused_panel
        self.footer.scope = str(panel.id) if panel is not None else ""
        self.paint()

    # Keys

    def on_key(self, event: Key) -> None:
        if self.prompt.display:
            return
        scope = str(self.focused_panel.id) if self.focused_panel is not None else ""
        action = self.registry.find(event.key, scope)
        if action is None and event.character is not None:
            action = self.registry.find(event.character, scope)
        if action is not None:
            event.stop()
            event.prevent_default()
            self.action_act(action.id)

    def action_act(self, name: str) -> None:
        """Carry out an action by id, or say why it is off; repaint at once."""
        self.unsay()
        reason = self.commands.why_not(name)
        if reason is not None:
            self.say(f"{self.registry[name].title}: {reason}", "warn")
            return
        action = self.registry[name]
        if action.scope in self.panels and self.focused_panel is not self.panels[action.scope]:
            self.show_panel(action.scope)
        with self.view.history.lock:
            self.commands.run(name)
        self.paint()

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
