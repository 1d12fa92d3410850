"""One line of a panel while it is put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.glyphs import to_ascii
from textual.strip import Strip


class WholeStrip(Strip):
    """A strip that is seldom cut. Textual's own keeps itself among its parts, which only the collector of cycles
    can free: at ten frames a second it would stop the console for 50 ms every other second."""

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        cuts = list(cuts)
        return [self] if cuts == [self.cell_length] else super().divide(cuts)


class Line:
    """Styled pieces from left to right. Lengths are in terminal cells."""

    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[tuple[str, Style]] = []
        self.length = 0

    def add(self, piece: str, style: Style) -> Line:
        """Neighbours of one style become one piece: each costs wherever lines are drawn, compared and written."""
        if piece:
            pieces = self.pieces
            if pieces and pieces[-1][1] is style:
                pieces[-1] = (pieces[-1][0] + piece, style)
            else:
                pieces.append((piece, style))
            self.length += len(piece) if piece.isascii() else cell_len(piece)
        return self

    def copy(self) -> Line:
        """A copy to continue with."""
        twin = Line()
        twin.pieces, twin.length = self.pieces.copy(), self.length
        return twin

    def extend(self, pieces: Iterable[tuple[str, Style]]) -> Line:
        for piece, style in pieces:
            self.add(piece, style)
        return self

    def pad(self, to_cells: int, style: Style, char: str = " ") -> Line:
        """Fill up to `to_cells` with `char`."""
        return self.add(char * (to_cells - self.length), style)

    def right(self, width: int, other: Line, style: Style, char: str = " ") -> Line:
        """Put `other` flush right in `width`, or leave it out if it does not fit."""
        if self.length + other.length + 1 <= width:
            self.pad(width - other.length, style, char)
            self.pieces += other.pieces
            self.length += other.length
        return self

    def cells(self, chars: Iterable[str], styles: Iterable[Style]) -> Line:
        """One-cell characters with a style each; neighbours of one style become one piece."""
        run: list[str] = []
        last: Style | None = None
        for char, style in zip(chars, styles, strict=True):
            if style is not last and run:
                assert last is not None
                self.pieces.append(("".join(run), last))
                self.length += len(run)
                run = []
            last = style
            run.append(char)
        if run and last is not None:
            self.pieces.append(("".join(run), last))
            self.length += len(run)
        return self

    def runs(self, chars: str, codes: npt.NDArray[np.integer], styles: Sequence[Style]) -> Line:
        """As `cells`, by the number of each character's style."""
        start, ends = 0, np.flatnonzero(codes[1:] != codes[:-1]) + 1
        for end in [*ends.tolist(), len(chars)] if chars else []:
            self.pieces.append((chars[start:end], styles[codes[start]]))
            start = end
        self.length += len(chars)
        return self

    def restyled(self, place: int, style: Style) -> list[tuple[str, Style]]:
        """The pieces with `style` added to one cell. All characters must be one cell wide."""
        pieces: list[tuple[str, Style]] = []
        for piece, own in self.pieces:
            if 0 <= place < len(piece):
                parts = (piece[:place], own), (piece[place], own + style), (piece[place + 1 :], own)
                pieces += [part for part in parts if part[0]]
            else:
                pieces.append((piece, own))
            place -= len(piece)
        return pieces

    def strip(self, width: int, base: Style, ascii_only: bool) -> Strip:
        """The finished line, exactly `width` cells; a cut is marked."""
        pieces = self.pieces if self.length <= width else self._cut(width)
        if ascii_only:
            pieces = [(piece if piece.isascii() else to_ascii(piece), style) for piece, style in pieces]
        segments = [Segment(piece, style) for piece, style in pieces]
        if self.length < width:
            segments.append(Segment(" " * (width - self.length), base))
        return WholeStrip(segments, width)

    def _cut(self, width: int) -> list[tuple[str, Style]]:
        kept, length = [], 0
        for piece, style in self.pieces:
            cells = cell_len(piece)
            if length + cells > width:
                kept.append((text.fit(piece, width - length), style))
                break
            kept.append((piece, style))
            length += cells
        return kept
