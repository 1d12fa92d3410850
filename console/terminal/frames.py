"""What the terminal shows, cell by cell, so that only cells that changed are written to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.color import ColorSystem
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

Cells = npt.NDArray[np.uint64]
"""By line and column: the number of the style's SGR codes above, the character's code point below `_STYLE` bits. The
second half of a wide character is 0 there."""

_STYLE = np.uint64(32)
_CHAR = np.uint64((1 << 32) - 1)
_UNKNOWN = np.uint64((1 << 64) - 1)
_NEAR = 3
"""Unchanged cells that are written again where stepping over them takes as many bytes."""

_GLYPHS = (*range(0x20, 0x7F), *range(0x2010, 0x2030), *range(0x2190, 0x2200), *range(0x2500, 0x2600))
_NARROW = frozenset(char for char in map(chr, _GLYPHS) if cell_len(char) == 1)
"""What most of the screen is made of."""

_COLOURS = frozenset(map(str, (*range(30, 38), 39, *range(90, 98))))
_GROUNDS = frozenset(map(str, (*range(40, 48), 49, *range(100, 108))))
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27", "8": "28", "9": "29"}
"""What takes an attribute back; 22 takes two."""
_ON_BLANKS = frozenset(("4", "7", "9", "21", "53"))
"""Attributes that a blank shows."""
_MOST_KNOWN = 4096


class Look(NamedTuple):
    """SGR codes: attributes, colour and ground."""

    attributes: frozenset[str]
    colour: str
    ground: str


class Frames:
    """`take` notes what the screen is to show, `changes` gives what brings the terminal there."""

    def __init__(self) -> None:
        self.size = (0, 0)
        self._wanted: Cells = np.zeros((0, 0), dtype=np.uint64)
        self._shown = self._wanted
        self._num_forgotten = 0
        self._styles: dict[str, int] = {"": 0}  # as many as the themes have
        self._looks: dict[str, Look] = {}
        self._turns: dict[tuple[str | None, str], str] = {}

    def forget(self) -> None:
        """Nothing is known of what the terminal shows. A signal handler may call it in the middle of `changes`."""
        self._num_forgotten += 1
        self._shown = np.full_like(self._wanted, _UNKNOWN)

    def take(self, update: ChopsUpdate | LayoutUpdate, size: tuple[int, int], colours: ColorSystem) -> None:
        """Note a part of the screen."""
        if size != self.size:
            self.size = size
            self._wanted = np.full(size[::-1], ord(" "), dtype=np.uint64)
            self.forget()
        for y, x, strip in _pieces(update):
            if 0 <= y < size[1]:
                self._put(y, x, strip, colours)

    def _put(self, y: int, x: int, strip: Strip, colours: ColorSystem) -> None:
        known = self._styles
        pieces, styles, sizes = [], [], []
        for words, style, control in strip:
            if control:
                continue
            ansi = "" if style is None else style._ansi
            if ansi is None and style is not None:
                ansi = Strip.render_ansi(style, colours)
            pieces.append(words)
            styles.append(known.setdefault(ansi or "", len(known)))
            sizes.append(len(words))
        whole = "".join(pieces)
        if not (whole.isascii() or _NARROW.issuperset(whole)):
            pieces = [_spread(words) for words in pieces]
            whole, sizes = "".join(pieces), [len(words) for words in pieces]
        chars = np.frombuffer(whole.encode("utf-32-le", "replace"), dtype="<u4")
        codes = np.array(styles, dtype=np.uint64).repeat(sizes) << _STYLE
        line = self._wanted[y, x:]
        num = min(len(line), len(chars))
        np.bitwise_or(codes[:num], chars[:num], out=line[:num])

    def changes(self) -> str:
        """What to write so that the terminal shows what is wanted; it then counts as shown."""
        out: list[str] = []
        num_forgotten, now, codes_of = self._num_forgotten, None, list(self._styles)
        changed = (self._wanted != self._shown) & (self._wanted & _CHAR != 0)
        for y in np.flatnonzero(changed.any(axis=1)).tolist():
            chars, styles = ((self._wanted[y] & _CHAR).tolist(), (self._wanted[y] >> _STYLE).tolist())
            at = -1
            for x in _written(np.flatnonzero(changed[y]).tolist(), chars):
                if at < 0 or x < at:
                    out.append(f"\x1b[{y + 1};{x + 1}H")
                elif x > at:
                    out.append(f"\x1b[{x - at}C")
                char, codes = chr(chars[x]), codes_of[styles[x]]
                if codes != now and not (char == " " and now is not None and self._same_blank(now, codes)):
                    out.append(self._turn(now, codes))
                    now = codes
                out.append(char)
                at = x + (cell_len(char) if not char.isascii() else 1)
        self._shown = self._wanted.copy()
        if self._num_forgotten != num_forgotten:
            self.forget()
        if now:
            out.append("\x1b[0m")
        return "".join(out)

    def _same_blank(self, one: str, other: str) -> bool:
        """Whether a blank looks the same in both."""
        one_look, other_look = self._look(one), self._look(other)
        if one_look.ground != other_look.ground:
            return False
        return not (one_look.attributes | other_look.attributes) & _ON_BLANKS

    def _turn(self, before: str | None, codes: str) -> str:
        """From one style to another, in as few bytes as can be."""
        found = self._turns.get((before, codes))
        if found is None:
            if len(self._turns) >= _MOST_KNOWN:
                self._turns.clear()
            found = self._turns[before, codes] = self._shortest(before, codes)
        return found

    def _shortest(self, before: str | None, codes: str) -> str:
        anew = f"\x1b[0;{codes}m" if codes else "\x1b[0m"
        if before is None:
            return anew
        old, new = self._look(before), self._look(codes)
        gone, come = old.attributes - new.attributes, new.attributes - old.attributes
        if not gone <= _OFF.keys():
            return anew
        if gone & {"1", "2"}:
            come |= new.attributes & {"1", "2"}
        parts = [*sorted({_OFF[attribute] for attribute in gone}), *sorted(come)]
        if old.colour != new.colour:
            parts.append(new.colour or "39")
        if old.ground != new.ground:
            parts.append(new.ground or "49")
        return min(anew, f"\x1b[{';'.join(parts)}m", key=len)

    def _look(self, codes: str) -> Look:
        found = self._looks.get(codes)
        if found is None:
            if len(self._looks) >= _MOST_KNOWN:
                self._looks.clear()
            found = self._looks[codes] = _look_of(codes)
        return found


def _look_of(codes: str) -> Look:
    """The parts of SGR codes, those of a colour's channels left in it."""
    parts, attributes, colour, ground = codes.split(";"), set(), "", ""
    while parts:
        code = parts.pop(0)
        if code in ("38", "48"):
            num = {"2": 4, "5": 2}.get(parts[0] if parts else "", 0)
            whole, parts = ";".join([code, *parts[:num]]), parts[num:]
            colour, ground = (whole, ground) if code == "38" else (colour, whole)
        elif code in _COLOURS:
            colour = code
        elif code in _GROUNDS:
            ground = code
        elif code:
            attributes.add(code)
    return Look(frozenset(attributes), colour, ground)


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


def _spread(words: str) -> str:
    """A character for each cell: the second half of a wide one has its own."""
    return "".join([char + "\0" * (width - 1) for char in words if (width := cell_len(char))])


def _written(changed: list[int], chars: list[int]) -> Iterator[int]:
    """The cells to write: those that changed, and the few between two of them."""
    last = -1
    for x in changed:
        if 0 <= last < x - 1 <= last + _NEAR and all(chars[last + 1 : x]):
            yield from range(last + 1, x)
        yield x
        last = x
