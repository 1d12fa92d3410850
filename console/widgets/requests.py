"""[3] Requests: every live request, sorted and filtered; the selection belongs to a request, not to a line."""

from __future__ import annotations

from typing import ClassVar

from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import shares
from schedtop.console.life.phases import PHASES
from schedtop.console.life.request_list import COLUMNS, Filter, RequestList, RequestRow
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.engine.contract.telemetry import WORKLOAD_ENDED, Notice

_STATE_ROLES = {
    **{name: phase.role for name, phase in PHASES.items()},
    "wait": "muted",
    "preempted": "breach",
}
_LEFT = ("id", "state", "progress", "adapter", "parent")
_MAKE_ROOM = ("progress", "cached", "prompt", "out", "preempt", "full", "adapter", "parent")
"""Columns that are left out where space is short, in this order."""

_ID_CELLS = 13, 30
"""What an id gets before all other columns: enough for two of a server's to differ."""
_GUTTER = 3
"""Cells for the cursor, a row's letter and a space."""
_BAR_GIVES, _ID_GIVES = 8, 2
"""Cells that the bar and the id can do without."""


class RequestsPanel(Panel):
    NUMBER: ClassVar[int] = 3
    TITLE: ClassVar[str] = "Requests"
    UNHURRIED: ClassVar[bool] = True
    HELP: ClassVar[str] = """\
STATE    decode, prefill, recompute (prompt and outputs again after a preemption), starved (running, but this
         step gave it no token), wait, preempted (waits again)
PROMPT   computed/prompt tokens while the prompt is computed; in a recompute, of all tokens it needs
CACHED   prompt tokens the prefix cache gave
PROGRESS cached prompt (broken line), computed prompt (thin), outputs (thick), and what may still come, in proportion
KV       blocks held, FULL those of full attention where other layers forget
AGE      since arrival      TTFT, ITL  in ms; ITL is the newest gap
PREEMPT  how often it was preempted     PRIO  lower is more urgent     ADAPTER  its LoRA adapter
PARENT   whose child it is, where a request asked for several answers
A letter before the id marks a row, which is tinted: T past its TTFT SLO, I its newest gap is past the ITL SLO,
V preempted, 0 starved.
< and > choose the sorting column, I inverts it. / filters: words match id, state, adapter or parent, kv>40,
out<10, age>2s, itl>80ms, prompt>=1000, progress>50% compare, ! before one excludes; all must hold. Esc clears it.
f keeps the selected request in sight, F keeps the order while values go on changing. Enter shows its life."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.sort, self.descending = "kv", True
        self.filter = Filter("")
        self.following = False
        self.frozen: list[int] | None = None
        self.selected: int | None = None
        self.top = 0
        self.list: RequestList = RequestList(view.history, view.history.now())
        self.listed: list[int] = []
        self._wants_sight = False
        self._id_cells = _ID_CELLS[0]

    def headline(self) -> Pieces:
        state = self.view.moment.state
        waiting = state.num_waiting
        pieces: Pieces = [
            (f"{state.num_running} run", "text"),
            (f"{waiting} wait", "text"),
            (f"sort {self.sort} {self._arrow()}", "text"),
        ]
        if self.filter:
            pieces.append((f"filter {self.filter.words}: {len(self.listed)}", "accent"))
            pieces += [("not understood", "warn")] if self.filter.problems else []
        if self.frozen is not None:
            pieces.append(("order frozen", "warn"))
        if self.following:
            pieces.append(("following", "accent"))
        return pieces

    def _arrow(self) -> str:
        return self.view.glyphs.down if self.descending else self.view.glyphs.up

    def lines(self, width: int, height: int) -> list[Line]:
        self.list = RequestList(self.view.history, self.view.moment, everyone=bool(self.filter))
        self.listed = self._order(self.list)
        shown = self.listed[self.top : self.top + height]
        longest = max((len(self.list.id(number)) for number in shown), default=0)
        self._id_cells = max(_ID_CELLS[0], min(_ID_CELLS[1], longest + 1))
        return super().lines(width, height)

    def _order(self, table: RequestList) -> list[int]:
        """Numbers of the requests that are shown, in the order of the table."""
        numbers = table.numbers
        if self.filter:
            numbers = [number for number in numbers if self.filter.keeps(table.row(number))]
        if self.frozen is None:
            return table.ordered(numbers, self.sort, self.descending)
        place = {number: index for index, number in enumerate(self.frozen)}
        return sorted(numbers, key=lambda number: place.get(number, len(place)))

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        columns = self.columns(width)
        lines = [self._titles(columns, width)]
        if not self.listed:
            return [*lines, *self._empty()][:height]
        page = max(1, height - 1)
        self._scroll(page)
        shown = self.listed[self.top : self.top + page]
        lines += [self._line(self.list.row(number), columns, width) for number in shown]
        hidden = len(self.listed) - self.top - len(shown)
        if hidden > 0 and len(lines) > 2:
            lines[-1] = Line().add(f" {self.view.glyphs.down} {hidden + 1} more", palette["muted"])
        return lines

    def _empty(self) -> list[Line]:
        palette = self.view.palette
        if not self.view.history.synced:
            ended = self.view.history.bye is not None
            return [Line().add(" No requests" if ended else " The engine is loading", palette["muted"])]
        if self.filter:
            return [Line().add(f" nothing matches {self.filter.words}; Esc clears the filter", palette["muted"])]
        return [
            Line().add(" No requests", palette["text"]),
            *(Line().add(f" {line}", palette["muted"]) for line in self._why_none()),
        ]

    def _why_none(self) -> list[str]:
        """Why no request is there, and what would bring some."""
        view, history = self.view, self.view.history
        if view.replay is None and view.link.state == "ended":
            return ["The engine stopped; no more will arrive."]
        header, totals = history.header, history.live.totals
        workload = text.clean(header.workload.get("source", ""), 40) if header is not None else ""
        if not workload:
            return ["Send some, or start with a workload: --workload mixed --rate 2."]
        if self._workload_ended():
            sent = text.plural(totals.submitted, "request")
            return [f"The workload {workload} has ended after {sent}: no more will arrive."]
        words = [f"None of the workload {workload} is here at this moment."]
        if view.replay is None and history.live.knobs.get("rate") is not None:
            words.append("rate in [6] sets how many it sends per second.")
        return words

    def _workload_ended(self) -> bool:
        """By its limit, or because the engine said so since this console came."""
        history = self.view.history
        limit = history.header.workload.get("limit") if history.header is not None else None
        if isinstance(limit, int) and history.live.totals.submitted >= limit:
            return True
        notices = (event.detail for event in history.of_kind("N") if isinstance(event.detail, Notice))
        return any(notice.text.startswith(WORKLOAD_ENDED) for notice in notices)

    def _scroll(self, page: int) -> None:
        numbers = self.listed
        if self.selected not in numbers:
            self.following = self.following and self.selected is None
            index = min(max(self.top, 0), len(numbers) - 1)
            self.selected = numbers[index]
        index = numbers.index(self.selected)
        if self._wants_sight or self.following:
            last = page - 1 if len(numbers) <= page else page - 2  # the last line may say that there is more below
            self.top = max(min(self.top, index), index - max(0, last))
            self._wants_sight = False
        self.top = max(0, min(self.top, len(numbers) - page))

    def columns(self, width: int) -> list[tuple[str, str, int]]:
        """What there is room for: the bar gives way first, then what is looked at least, at last some of the id."""
        shown = {
            "priority": self.view.history.policy == "priority",
            "adapter": self.list.has_adapters,
            "full": self.list.has_groups,
            "parent": self.list.has_parents,
        }
        listed = [
            (name, title, self._id_cells if name == "id" else size)
            for name, title, size in COLUMNS
            if shown.get(name, True)
        ]
        for name in _MAKE_ROOM:
            if _spare(listed, width) >= -(_BAR_GIVES if name == "progress" else _ID_GIVES):
                break
            listed = [column for column in listed if column[0] != name]
        spare = _spare(listed, width)
        bar = max(0, spare - 26) if spare > 0 else max(spare, -_BAR_GIVES)
        bar = bar if any(name == "progress" for name, _, _ in listed) else 0
        wider = {"id": min(spare - min(bar, 0), 26), "progress": bar}
        return [(name, title, max(6, size + wider.get(name, 0))) for name, title, size in listed]

    def _titles(self, columns: list[tuple[str, str, int]], width: int) -> Line:
        palette = self.view.palette
        line = Line().add(" " * _GUTTER, palette.on("muted", "surface"))
        for name, title, size in columns:
            words = f"{title}{self._arrow()}" if name == self.sort and self.frozen is None else title
            style = palette.on("accent" if name == self.sort else "muted", "surface")
            line.add(text.fit(words, size - 1, "<" if name in _LEFT else ">") + " ", style)
        return line.pad(width, palette.on("muted", "surface"))

    def _line(self, row: RequestRow, columns: list[tuple[str, str, int]], width: int) -> Line:
        palette, selected = self.view.palette, row.number == self.selected
        mark = self._mark(row)
        under = "cursor" if selected else "late" if mark else "background"
        line = Line().add(self.view.glyphs.cursor if selected else " ", palette.on("accent", under))
        line.add(f"{mark:{_GUTTER - 1}}", palette.on("breach", under))
        plain = palette.on("text", under)
        for name, _, size in columns:
            if name == "progress":
                self._progress(line, row, size - 2, under)
                continue
            words, role = self._cell(name, row)
            words = text.identity(words, size - 1) if name == "id" else words
            words = text.fit(words, size - 1, "<" if name in _LEFT else ">")
            if role == "text":
                line.add(words + " ", plain)
                continue
            inner = words.strip()
            lead, _, trail = words.partition(inner) if inner else ("", "", words)
            line.add(lead, plain).add(inner, palette.on(role, under)).add(trail + " ", plain)
        return line.pad(width, plain)

    def _mark(self, row: RequestRow) -> str:
        """The letter of a row that is stalled or past its SLO; empty for any other."""
        options = self.view.options
        if row.state in ("starved", "preempted"):
            return PHASES["starved" if row.state == "starved" else "re-queued"].letter
        first_s = row.age if row.ttft is None else row.ttft
        if options.ttft_slo_s is not None and first_s > options.ttft_slo_s:
            return "T"
        return "I" if options.itl_slo_s is not None and (row.itl or 0.0) > options.itl_slo_s else ""

    def _progress(self, line: Line, row: RequestRow, cells: int, under: str) -> None:
        """Cached prompt, computed prompt, outputs, and what is still to come, in proportion."""
        palette, glyphs = self.view.palette, self.view.glyphs
        cached = min(row.cached, row.done)
        amounts = (cached, row.done - cached, row.out, max(0, row.prompt - row.done) + max(0, row.max - row.out))
        roles = ("cached", "prefill", "decode", "empty")
        line.add(" ", palette.on("text", under))
        for role, glyph, part in zip(roles, glyphs.progress, shares(amounts, cells), strict=True):
            line.add(glyph * part, palette.on(role, under))
        line.add(" ", palette.on("text", under))

    def _cell(self, name: str, row: RequestRow) -> tuple[str, str]:
        options = self.view.options
        match name:
            case "state":
                return row.state, _STATE_ROLES.get(row.state, "text")
            case "prompt":
                doing = {"prefill": f"{row.done}/{row.prompt}", "recompute": f"{row.computed}/{row.needed}"}
                return doing.get(row.state, str(row.prompt)), "text"
            case "out":
                return (f"{row.out}/{row.max}" if row.out else text.NONE), "text"
            case "age":
                return text.duration(row.age), "text"
            case "ttft":
                return _late(row.ttft, options.ttft_slo_s)
            case "itl":
                return _late(row.itl, options.itl_slo_s)
            case "preempt":
                return str(row.preempt), "breach" if row.preempt else "muted"
        return str(getattr(row, name)), "text"

    # Keys

    def move(self, lines: int) -> None:
        numbers = self.listed
        if not numbers:
            return
        index = numbers.index(self.selected) if self.selected in numbers else 0
        self.selected = numbers[max(0, min(len(numbers) - 1, index + lines))]
        self._wants_sight = True

    def sort_by(self, offset: int) -> None:
        """Sort by the column `offset` places to the right of the present one."""
        names = [name for name, _, _ in self.columns(self.size.width)]
        index = names.index(self.sort) if self.sort in names else 0
        self.sort = names[(index + offset) % len(names)]
        self._wants_sight = True

    def toggle_frozen(self) -> None:
        self.frozen = None if self.frozen is not None else list(self.listed)

    def set_filter(self, words: str) -> None:
        self.filter = Filter(words)
        self.top = 0

    def next_match(self, offset: int) -> None:
        """The next or previous listed request, around the ends."""
        numbers = self.listed
        if numbers:
            index = numbers.index(self.selected) if self.selected in numbers else 0
            self.selected = numbers[(index + offset) % len(numbers)]
            self._wants_sight = True

    def selected_row(self) -> RequestRow | None:
        number = self.selected
        return self.list.row(number) if number is not None and number in self.list else None

    def copied(self) -> str:
        row = self.selected_row()
        return " ".join(f"{name}={getattr(row, name)}" for name in row._fields) if row is not None else ""

    def click_line(self, y: int, x: int) -> None:
        if y == 0:
            self._click_title(x)
        elif y - 1 + self.top < len(self.listed):
            self.selected = self.listed[y - 1 + self.top]

    def _click_title(self, x: int) -> None:
        at = _GUTTER
        for name, _, size in self.columns(self.size.width):
            if at <= x < at + size:
                self.descending = not self.descending if name == self.sort else True
                self.sort = name
                return
            at += size


def _late(seconds: float | None, slo_s: float | None) -> tuple[str, str]:
    if seconds is not None and slo_s is not None and seconds > slo_s:
        return f"{text.ms(seconds)}!", "breach"
    return text.ms(seconds), "text"


def _spare(columns: list[tuple[str, str, int]], width: int) -> int:
    """Cells left beside columns of their own width; negative if there are too few."""
    return width - _GUTTER - sum(size for _, _, size in columns)
