"""Help: what the focused panel's figures mean, then every key."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from schedtop.console.actions import SCOPES, Action, key_name
from schedtop.console.drawing import text
from schedtop.console.drawing.glyphs import to_ascii
from schedtop.console.screens.base import ConsoleScreen
from schedtop.console.widgets.header import HeaderBar
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key

_HANG = 17
"""Where the words of a key begin."""

_TERM = re.compile(r" *(?:\S+(?: \S+)*?  +|[A-Z]{2,}\S* +)(?=\S)")
_COLUMNS = re.compile(r"(?<=\S) {4,}(?=[A-Z]|[!i] )")
_ENDS = re.compile(r"[.:)]$")

CLOSE = ("escape", "q", "question_mark", "f1", "enter")


class HelpScreen(ModalScreen[None]):
    """Scrolls with the same keys as everything else; Esc, q or ? close it. Its last line says what is below."""

    def __init__(self, over: ConsoleScreen) -> None:
        super().__init__(classes="dialog")
        self.over = over
        self._drawn_for = 0

    def compose(self) -> ComposeResult:
        self._drawn_for = self._width()  # at once: a frame without the words would go over the line first
        with Vertical(id="help"):
            with VerticalScroll(id="help-page"):
                yield Static(self.page(self._drawn_for), id="help-text")
            yield Static("", id="help-foot")

    def on_mount(self) -> None:
        self.scroll.focus()
        self.watch(self.scroll, "scroll_y", self._tell_more)
        self.watch(self.scroll, "virtual_size", self._tell_more)

    @property
    def scroll(self) -> VerticalScroll:
        return self.query_one("#help-page", VerticalScroll)

    def _tell_more(self) -> None:
        """How much of the page is still to come, and how to leave it."""
        palette, glyphs, scroll = self.over.view.palette, self.over.view.glyphs, self.scroll
        more = round(scroll.max_scroll_y - scroll.scroll_y)
        foot = Text()
        if more > 0:
            words = f"{text.plural(more, 'more line')} {glyphs.down}  "
            foot.append(words, palette.on("accent", "surface"))
        foot.append("Esc closes this page.", palette.on("muted", "surface"))
        self.query_one("#help-foot", Static).update(foot)

    def on_resize(self) -> None:
        if self._drawn_for != (width := self._width()):
            self._drawn_for = width
            self.query_one("#help-text", Static).update(self.page(width))
        self.call_after_refresh(self._tell_more)  # once the page has its height

    def _width(self) -> int:
        """Cells of a line, as the stylesheet gives them: beside them are the padding and the scroll bar."""
        return max(_HANG + 10, min(118, self.app.size.width * 94 // 100) - 5)

    def page(self, width: int) -> Text:
        """The figures of what has the focus, its keys, then all other keys."""
        palette = self.over.view.palette
        heading, plain, quiet = (palette.on(role, "surface") for role in ("accent", "text", "muted"))
        title, words = self.over.help_page()
        page = Text()
        if words:
            page.append(f"{title}\n", heading).append("\n".join(flow(words, width)) + "\n\n", plain)
        own = self.over.scope
        for scope in sorted(SCOPES, key=lambda scope: scope != own):
            actions = self.over.registry.of_scope(scope)
            if not actions:
                continue
            page.append(f"{SCOPES[scope]}\n", heading)
            for action in actions:
                self._line(page, action, width, (heading, plain, quiet))
            page.append("\n")
        page.append("The first line\n", heading).append("\n".join(flow(HeaderBar.HELP, width)), plain)
        return Text(to_ascii(page.plain), spans=page.spans) if self.over.view.options.ascii else page

    def _line(self, page: Text, action: Action, width: int, styles: tuple[Style, Style, Style]) -> None:
        key, plain, quiet = styles
        keys = " ".join(key_name(key) for key in action.keys) or "(no key)"
        reason = self.over.why_not(action.id)
        words = Text().append(action.title, plain).append(f". {action.help}" if action.help else "", quiet)
        words.append(f"  [now off: {reason}]" if reason else "", quiet)
        page.append(f"  {keys:<14} ", key)
        page.append_text(Text("\n" + " " * _HANG).join(words.wrap(self.app.console, width - _HANG))).append("\n")

    def on_key(self, event: Key) -> None:
        scroll = self.scroll
        moves: dict[str, Callable[[], object]] = {
            "j": lambda: scroll.scroll_down(animate=False),
            "k": lambda: scroll.scroll_up(animate=False),
            "space": lambda: scroll.scroll_page_down(animate=False),
            "g": lambda: scroll.scroll_home(animate=False),
            "G": lambda: scroll.scroll_end(animate=False),
        }
        if event.key in CLOSE:
            event.stop()
            self.dismiss(None)
        elif event.key in moves:
            event.stop()
            moves[event.key]()


def flow(words: str, width: int) -> list[str]:
    """Lines of at most `width`: unchanged where all fit, else their paragraphs rewrapped.

    A line set in by more than an item's two blanks continues with the one above, as prose does up to its full stop.
    What follows a term and blanks hangs.
    """
    lines = words.splitlines()
    if all(len(line) <= width for line in lines):
        return lines
    paragraphs: list[str] = []
    for line in lines:
        first, *others = _COLUMNS.split(line)
        above, indent = paragraphs[-1] if paragraphs else ".", line[: len(line) - len(line.lstrip())]
        prose = not (indent or _TERM.match(line) or _TERM.match(above) or above.startswith(" "))
        if len(indent) > 2 or (prose and not _ENDS.search(above)):
            paragraphs[-1] += f" {first.strip()}"
        else:
            paragraphs.append(first)
        paragraphs += [indent + other for other in others]
    return [piece for paragraph in paragraphs for piece in _wrapped(paragraph, width)]


def _wrapped(paragraph: str, width: int) -> list[str]:
    found = _TERM.match(paragraph)
    hang = found.end() if found is not None else 0
    if found is not None and hang > width // 3:
        paragraph, hang = f"{found[0].rstrip()}  {paragraph[hang:]}", 4
    return textwrap.wrap(paragraph, width, subsequent_indent=" " * hang)
