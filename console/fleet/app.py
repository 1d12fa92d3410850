"""The fleet's screen: a row per engine, all together below, and what is not known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from rich.text import Text
from schedtop.console.drawing import text
from schedtop.console.fleet.rows import NA, Fleet, FleetRow, imbalances
from schedtop.console.terminal.driver import ConsoleDriver
from textual.app import App
from textual.binding import Binding, BindingType
from textual.drivers.linux_driver import LinuxDriver
from textual.widgets import DataTable, Input, Sparkline, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult

LOOK_EVERY_S = 1.0
WINDOWS_S = (10.0, 60.0, 300.0, 900.0)
WIDE = 120
"""Cells from which on an engine's whole address is in its row; below, it stands under the table."""
HISTORY = 900
"""Looks that the curve of output tokens holds."""

COLUMNS = (
    "engine",
    "running",
    "waiting",
    "KV",
    "out/s",
    "in/s",
    "TTFT p50",
    "p95",
    "ITL p50",
    "p95",
    "preempt",
    "hits",
    "",
)


class FleetApp(App[str]):
    """Left with the address of an engine to open, or None."""

    CSS: ClassVar[str] = """
    #title { height: 1; }
    DataTable { height: 1fr; }
    #causes { height: auto; max-height: 5; }
    #curve-title { height: 1; color: $text-muted; }
    Sparkline { height: 3; }
    #notes { height: auto; max-height: 6; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("plus,equals_sign", "window(1)", "longer"),
        Binding("minus", "window(-1)", "shorter"),
        Binding("K", "limits", "limits"),
        Binding("escape", "leave_limits", "back"),
    ]
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False

    def __init__(
        self,
        fleet: Fleet,
        title: str,
        *,
        theme: str | None = None,
        set_limits: Callable[[str], tuple[str, str]] | None = None,
    ) -> None:
        """`set_limits` sets what was typed on all engines or none; it returns what was done, or why nothing was."""
        super().__init__(driver_class=ConsoleDriver if issubclass(self.get_driver_class(), LinuxDriver) else None)
        self._fleet, self._heading = fleet, title
        self._set_limits = set_limits
        self._window = 1
        self._rows: list[FleetRow] = []
        self._curve: list[float] = []
        if theme in self.available_themes:
            self.theme = theme

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="causes")
        yield Static("output tokens/s of all", id="curve-title")
        yield Sparkline([])
        yield Static(id="notes")
        yield Input(placeholder="limits of all engines: max_num_seqs=64 max_num_scheduled_tokens=2048", id="limits")

    def on_mount(self) -> None:
        self.query_one("#limits").display = False
        table = self.query_one(DataTable)
        for place, name in enumerate(COLUMNS):
            table.add_column(name, key=str(place))
        self.look()
        self.set_interval(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Show the present."""
        window_s = WINDOWS_S[self._window]
        self._rows = list(self._fleet.rows(window_s))
        total = self._fleet.total(window_s)
        table, marked = self.query_one(DataTable), imbalances(self._rows)
        brief = self.size.width < WIDE
        shown = [_cells(row, marked.get(place, ""), brief) for place, row in enumerate(self._rows)]
        shown += [_cells(total, "", brief)] if total is not None else []
        if table.row_count != len(shown):
            cursor = table.cursor_row
            table.clear()
            for place, cells in enumerate(shown):
                table.add_row(*cells, key=str(place))
            table.move_cursor(row=min(cursor, max(0, len(shown) - 1)))
        else:
            for place, cells in enumerate(shown):
                for column, cell in enumerate(cells):
                    table.update_cell(str(place), str(column), cell, update_width=True)
        self._tell()
        known = [row.output_per_s for row in self._rows if row.output_per_s is not None]
        self._curve = [*self._curve[-HISTORY:], sum(known)]
        self.query_one(Sparkline).data = self._curve
        limits = "   K limits" if self._set_limits is not None else ""
        self.query_one("#title", Static).update(
            Text(f" schedtop  {self._heading}   window {window_s:g} s (+ -)   Enter opens{limits}   q quit")
        )
        self.query_one("#notes", Static).update(Text("\n".join(self._fleet.notes())))

    def _tell(self) -> None:
        """What a narrow table has no room for: the selected engine's whole address, and why some do not answer."""
        at = self.query_one(DataTable).cursor_row
        whole = [f" {self._rows[at].name}"] if self.size.width < WIDE and at < len(self._rows) else []
        causes = [f" ! {row.brief or row.name}: {row.state}" for row in self._rows if row.state]
        self.query_one("#causes", Static).update(Text("\n".join(whole + causes)))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._tell()

    def action_window(self, by: int) -> None:
        self._window = max(0, min(len(WINDOWS_S) - 1, self._window + by))
        self.look()

    def action_limits(self) -> None:
        """Ask for limits to set on all engines."""
        if self._set_limits is None:
            self.notify("no limits can be set here: metrics pages take none, and --read-only sets none")
            return
        prompt = self.query_one("#limits", Input)
        prompt.display = True
        prompt.focus()

    def action_leave_limits(self) -> None:
        self.query_one("#limits").display = False
        self.query_one(DataTable).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        words, set_limits = event.value, self._set_limits
        self.action_leave_limits()
        if words.strip() and set_limits is not None:
            self.run_worker(partial(self._change, set_limits, words), thread=True)  # engines may be slow to answer

    def _change(self, set_limits: Callable[[str], tuple[str, str]], words: str) -> None:
        done, refused = set_limits(words)
        said = Text(done or f"nothing was changed: {refused}").plain
        severity: Literal["information", "error"] = "information" if done else "error"
        self.call_from_thread(self.notify, said, severity=severity, markup=False)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        place = event.cursor_row
        if place < len(self._rows):
            row = self._rows[place]
            if row.address and not row.state:
                self.exit(row.address)
            else:
                why = (
                    row.state
                    or "its page does not show steps: start the server with SCHEDTOP_ATTACH (docs/vllm.md)"
                )
                self.notify(Text(why).plain, title=Text(row.name).plain, markup=False)


class Played(Fleet, Protocol):
    """A fleet of the past."""

    def move(self, seconds: float) -> None: ...
    def toggle(self) -> None: ...


class FleetReplayApp(FleetApp):
    """The same screen over recorded pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "play"),
        Binding("left", "move(-10)", "back", priority=True),
        Binding("right", "move(10)", "on", priority=True),
    ]

    def __init__(self, pages: Played, title: str) -> None:
        super().__init__(pages, title)
        self._pages = pages

    def action_play(self) -> None:
        self._pages.toggle()
        self.look()

    def action_move(self, seconds: int) -> None:
        self._pages.move(seconds)
        self.look()


def _cells(row: FleetRow, mark: str, brief: bool) -> list[Text]:
    name = (brief and row.brief) or row.name
    if row.state:
        return [Text(name), Text("!", style="bold"), *[Text("")] * (len(COLUMNS) - 2)]
    note = f"! {mark}" if mark else ""
    if row.restarts:
        note = f"{note} restarted {row.restarts}x".strip()
    figures = [
        _count(row.running),
        _count(row.waiting),
        NA if row.kv_usage is None else f"{row.kv_usage:.0%}",
        NA if row.output_per_s is None else text.rate(row.output_per_s),
        NA if row.prompt_per_s is None else text.rate(row.prompt_per_s),
        *row.ttft,
        *row.itl,
        _count(row.preemptions),
        NA if row.hit_rate is None else f"{row.hit_rate:.0%}",
    ]
    return [Text(name), *[Text(figure, justify="right") for figure in figures], Text(note, style="bold")]


def _count(value: float | None) -> str:
    return NA if value is None else text.count(int(value))
