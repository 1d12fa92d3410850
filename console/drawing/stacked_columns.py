"""Stacked columns of tokens, drawn smoothly in colour or in whole cells with textures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from schedtop.console.drawing.glyphs import Glyphs
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import Palette

Parts = npt.NDArray[np.float64]


class Layer(NamedTuple):
    """One class of a stack: its role and letter, its texture, and whether it is only ground for the others."""

    role: str
    letter: str
    texture: str
    ground: bool = False


Layers = tuple[Layer, ...]


def draw_columns(parts: Parts, rows: int, layers: Layers, palette: Palette, glyphs: Glyphs) -> list[Line]:
    """`rows` lines of columns, top first. `parts` (columns, layers) are shares of the full height, lowest first."""
    if palette.solid and glyphs.eighths:
        return _smooth(parts, rows, layers, palette, glyphs)
    return _textured(parts, rows, layers, palette)


def _smooth(parts: Parts, rows: int, layers: Layers, palette: Palette, glyphs: Glyphs) -> list[Line]:
    """In eighths of a cell: two layers may share a cell, one above the other; whole cells carry their letter."""
    roles = ["surface" if layer.ground else layer.role for layer in layers] + ["background"]
    blank = [layer.ground for layer in layers] + [True]
    whole = [
        palette.fill("text", role) if bare else palette.texture(role)
        for role, bare in zip(roles, blank, strict=True)
    ]
    letters = [" " if bare else layer.letter for bare, layer in zip(blank, layers, strict=False)] + [" "]
    num = len(roles)
    styles = whole + [palette.fill(lower, upper) for lower in roles for upper in roles]
    marks = letters + list(glyphs.eighths[:8])
    levels = column_levels(parts, rows * 8)
    low = 8 * np.arange(rows - 1, -1, -1)[:, None]
    # By row and column: the layers at the cell's lower and upper edge, and where between them the lower one ends.
    lower = (levels <= low[:, :, None]).sum(axis=2)
    upper = (levels < low[:, :, None] + 8).sum(axis=2)
    ends = np.take_along_axis(np.c_[levels, levels[:, -1:]], lower.T, axis=1).T - low
    is_whole = (lower == upper) | np.array(blank)[lower]
    style = np.where(is_whole, lower, num + num * lower + upper)
    mark = np.where(is_whole, lower, num + ends)
    return [
        Line().runs("".join([marks[cell] for cell in chars]), codes, styles)
        for chars, codes in zip(mark.tolist(), style, strict=True)
    ]


def _textured(parts: Parts, rows: int, layers: Layers, palette: Palette) -> list[Line]:
    """In whole cells, each with the texture or letter of its layer."""
    textures = [layer.texture for layer in layers] + [" "]
    styles = [palette[layer.role] for layer in layers] + [palette["text"]]
    levels = column_levels(parts, rows)
    lines = []
    for row in range(rows - 1, -1, -1):
        kinds = (levels <= row).sum(axis=1).tolist()
        lines.append(Line().cells([textures[kind] for kind in kinds], [styles[kind] for kind in kinds]))
    return lines


def column_levels(parts: Parts, height: int) -> npt.NDArray[np.int64]:
    """Where each part of each column ends, in whole units of `height`, from below.

    What is not zero gets at least one unit; the largest part gives way where that makes a column too high.
    """
    units = np.rint(parts * height).astype(np.int64)
    units = np.where((parts > 0) & (units == 0), 1, units)
    room = np.rint(parts.sum(axis=1) * height).astype(np.int64).clip(1, height)
    largest = units.argmax(axis=1)
    units[np.arange(len(units)), largest] -= (units.sum(axis=1) - room).clip(0)
    levels: npt.NDArray[np.int64] = np.cumsum(units.clip(0), axis=1)
    return levels


def shares(amounts: tuple[int, ...], cells: int) -> list[int]:
    """`cells` divided in proportion to `amounts`; whatever is not zero gets at least one cell."""
    total = sum(amounts)
    if not total:
        return [0] * (len(amounts) - 1) + [cells]
    exact = [amount * cells / total for amount in amounts]
    given = [max(1, int(part)) if amount else 0 for part, amount in zip(exact, amounts, strict=True)]
    order = sorted(range(len(amounts)), key=lambda i: exact[i] - given[i])
    while sum(given) < cells:
        given[order.pop()] += 1
    while sum(given) > cells:
        given[max(range(len(given)), key=given.__getitem__)] -= 1
    return given
