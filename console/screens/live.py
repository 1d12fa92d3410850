"""The Live screen: composes the panels, places them, and carries out actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.actions import Registry
from schedtop.console.drawing import layout
from schedtop.console.knobs.staged import Staging
from schedtop.console.screens.base import ConsoleScreen, TooSmall
from schedtop.console.view import View
from schedtop.console.widgets.banner import BannerBar, banner
from schedtop.console.widgets.bars import Divider, TabBar, Ticker
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

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import DescendantFocus, Resize


class LiveScreen(ConsoleScreen):
    """Panels over one view. Telemetry repaints when the app says so, which also gives it its `commands`."""

    AUTO_FOCUS: ClassVar[str | None] = "#requests"
    TIMELINE: ClassVar[bool] = False

    def __init__(self, view: View, registry: Registry, staging: Staging) -> None:
        super().__init__(view, registry)
        self.footer.leaves = False
        self.staging = staging
        self.batch_panel = BatchPanel(view, id="batch")
        self.kv = KvPanel(view, id="kv")
        self.requests = RequestsPanel(view, id="requests")
        self.latency = LatencyPanel(view, id="latency")
        self.queue = QueuePanel(view, id="queue")
        self.knobs = KnobsPanel(view, staging, id="knobs")
        self.events = EventsPanel(view, id="events")
        listed = (self.batch_panel, self.kv, self.requests, self.latency, self.queue, self.knobs, self.events)
        self.panels: dict[str, Panel] = {str(panel.id): panel for panel in listed}
        self.header = HeaderBar(view, id="header")
        self.tabs = TabBar(view, self.panels, id="tabs")
        self.banner = BannerBar(view, id="banner")
        ticker = Ticker(view, self.events, id="ticker")
        self.bars: tuple[Drawn, ...] = (self.banner, self.tabs, ticker, Divider(view, id="divider"))
        self.prompt = Prompt(view, id="prompt")
        self.small = TooSmall()
        self.tab = "requests"
        self.zoomed: str | None = None
        self._placed: tuple[object, ...] = ()
        self._last_panel: Panel | None = None

    def compose(self) -> ComposeResult:
        yield self.header
        yield from self.panels.values()
        yield from self.bars
        yield self.footer
        yield self.prompt
        yield self.small

    def on_mount(self) -> None:
        self.place()

    def on_resize(self, event: Resize) -> None:
        self.place()

    # Painting

    def paint(self) -> None:
        """Draw every visible panel from the view as it is now."""
        if not self.small.is_attached:
            return  # not composed yet, or already being taken apart
        with self.view.history.lock:
            self.view.look()
            self.place()
            for widget in (self.header, *self.panels.values(), *self.bars, self.footer):
                widget.paint()

    def place(self) -> None:
        """Put every widget where the size, the tab, the zoom and the banner say."""
        width, height = self.app.size
        has_banner = banner(self.view) is not None or layout.mode(width, height) != "strip"
        key = (width, height, self.tab, self.zoomed, has_banner)
        if key == self._placed:
            return
        self._placed = key
        self.small.tell(width, height)
        places = layout.arrange(width, height, self.tab, self.zoomed, has_banner, self.TIMELINE)
        tabbed = "tabs" in places
        self.tabs.tab = self.tab
        for widget in (self.header, *self.panels.values(), *self.bars, self.footer):
            place = places.get(str(widget.id))
            widget.display = place is not None
            if isinstance(widget, Panel):
                widget.zoomed = self.zoomed == widget.id
                widget.show_rule = not (tabbed and widget.id == self.tab)
            if place is not None:
                widget.styles.width, widget.styles.height = place.width, place.height
                widget.styles.offset = (place.x, place.y)
        if self.focused is None and self._last_panel is not None and self._last_panel.display:
            self.set_focus(self._last_panel)  # hidden widgets lose it

    # Focus

    @property
    def panel(self) -> Panel | None:
        return self.focused_panel

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

    def focus_moved(self) -> None:
        panel = self.focused_panel
        self.footer.scope = str(panel.id) if panel is not None else ""

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        with self.view.history.lock:
            self.footer.paint()
            self.tabs.paint()

    # Keys

    @property
    def open_prompt(self) -> Prompt | None:
        return self.prompt if self.prompt.display else None

    def action_act(self, name: str) -> None:
        scope = self.registry[name].scope
        if scope in self.panels and self.focused_panel is not self.panels[scope]:
            self.show_panel(scope)
        super().action_act(name)

    def help_page(self) -> tuple[str, str]:
        panel = self.focused_panel
        return ("schedtop", "") if panel is None else (f"[{panel.NUMBER}] {panel.title}", panel.HELP)

    def copied_line(self) -> str:
        panel = self.focused_panel
        return panel.copied() if panel is not None else ""
