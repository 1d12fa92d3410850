"""What the terminal shows, cell by cell, so that only cells that changed are written to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count

from rich.cells import cell_len
from rich.color import ColorSystem
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

Cell = tuple[str, str]
"""A character and the SGR codes of its style; the second half of a wide one is empty."""

_UNKNOWN: Cell = ("", "?")
_NEAR = 3
"""Unchanged cells that are written again where stepping over them takes as many bytes."""

_COLOURS = re.compile(r"(?:^|;)((?:38;(?:5;\d+|2;\d+;\d+;\d+))|3[0-79]|9[0-7])(?=;|$)")
_GROUNDS = re.compile(r"(?:^|;)((?:48;(?:5;\d+|2;\d+;\d+;\d+))|4[0-79]|10[0-7])(?=;|$)")


class Frames:
    """`take` notes what the screen is to show, `changes` gives what brings the terminal there."""

    def __init__(self) -> None:
        self.size = (0, 0)
        self._wanted: list[list[Cell]] = []
        self._shown: list[list[Cell]] = []
        self._dirty: set[int] = set()
        self._codes: dict[str, tuple[str, str, str]] = {}

    def forget(self) -> None:
        """Nothing is known of what the terminal shows."""
        width, height = self.size
        self._shown = [[_UNKNOWN] * width for _ in range(height)]
        self._dirty = set(range(height))

    def take(self, update: ChopsUpdate | LayoutUpdate, size: tuple[int, int], colours: ColorSystem) -> None:
        """Note a part of the screen."""
        if size != self.size:
            self.size = size
            self._wanted = [[(" ", "")] * size[0] for _ in range(size[1])]
            self.forget()
        for y, x, strip in _pieces(update):
            if 0 <= y < size[1]:
                self._put(y, x, strip, colours)

    def _put(self, y: int, x: int, strip: Strip, colours: ColorSystem) -> None:
        cells: list[Cell] = []
        for words, style, control in strip:
            if control:
                continue
            ansi = "" if style is None else style._ansi
            if ansi is None and style is not None:
                ansi = Strip.render_ansi(style, colours)
            codes = ansi or ""
            if words.isascii():
                cells += [(char, codes) for char in words]
            else:
                for char in words:
                    width = cell_len(char)
                    cells += [(char, codes), *[("", codes)] * (width - 1)] if width else []
        line = self._wanted[y]
        room = len(line) - x
        if line[x : x + len(cells)] != cells[:room]:
            line[x : x + len(cells)] = cells[:room]
            self._dirty.add(y)

    def changes(self) -> str:
        """What to write so that the terminal shows what is wanted; it then counts as shown."""
        out: list[str] = []
        now = None
        for y in sorted(self._dirty):
            wanted, shown = self._wanted[y], self._shown[y]
            at = -1
            for x in _differing(wanted, shown):
                if at < 0 or x < at:
                    out.append(f"\x1b[{y + 1};{x + 1}H")
                elif x > at:
                    out.append(f"\x1b[{x - at}C")
                char, codes = wanted[x]
                if codes != now:
                    out.append(self._sgr(now, codes))
                    now = codes
                out.append(char)
                at = x + (cell_len(char) if not char.isascii() else 1)
            self._shown[y] = wanted.copy()
        self._dirty.clear()
        if now:
            out.append("\x1b[0m")
        return "".join(out)

    def _sgr(self, before: str | None, codes: str) -> str:
        """From one style to another, in as few codes as can be."""
        if before is None:
            return f"\x1b[0;{codes}m" if codes else "\x1b[0m"
        old, new = self._parts(before), self._parts(codes)
        if old[0] != new[0] or any(was and not now for was, now in zip(old[1:], new[1:], strict=True)):
            return f"\x1b[0;{codes}m" if codes else "\x1b[0m"
        return f"\x1b[{';'.join(now for was, now in zip(old[1:], new[1:], strict=True) if was != now)}m"

    def _parts(self, codes: str) -> tuple[str, str, str]:
        """Attributes, colour and ground of SGR codes."""
        found = self._codes.get(codes)
        if found is None:
            colour, ground = _COLOURS.search(codes), _GROUNDS.search(codes)
            rest = _GROUNDS.sub("", _COLOURS.sub("", codes)).strip(";")
            found = self._codes[codes] = rest, colour[1] if colour else "", ground[1] if ground else ""
        return found


def _pieces(update: ChopsUpdate | LayoutUpdate) -> Iterator[tuple[int, int, Strip]]:
    """The pieces of an update with the line and column where each begins."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, first, last in update.spans:
        for end, (x, part) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if part is not None and x <= last and end > first:
                yield y, x, part if end <= last else part.crop(0, last - x)


def _differing(wanted: list[Cell], shown: list[Cell]) -> Iterable[int]:
    """The cells to write: those that differ, and the few between two of them."""
    last = -1
    for x, new, old in zip(count(), wanted, shown, strict=False):
        if new == old or not new[0]:
            continue
        if 0 <= last < x - 1 <= last + _NEAR and all(wanted[at][0] for at in range(last + 1, x)):
            yield from range(last + 1, x)
        yield x
        last = x
