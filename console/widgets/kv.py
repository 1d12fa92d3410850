"""[2] KV: the pool by class as a bar with the watermark, and block by block as a map."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.layout import COMPACT
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import shares
from schedtop.console.past.state import Classes
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.engine.contract.kv_groups import kinds_of
from schedtop.engine.contract.reading import blocks_in_use
from schedtop.engine.contract.telemetry import BlockClass, Blocks

ORDER = (
    (BlockClass.HELD, "held", "held", "#"),
    (BlockClass.SHARED, "shared", "shared", "&"),
    (BlockClass.CACHED_FREE, "cached", "cached-free", "c"),
    (BlockClass.EMPTY, "empty", "empty", "."),
)
"""Class, role, word and letter, in the order of the bar."""

LETTERS = {role: letter for _, role, _, letter in ORDER}

_NO_ROOM_BELOW = 4
"""Up to this many rows, the panel shows KV groups and the host's memory in its rule."""

_ROLES = ("empty", "cached", "held", "shared")
"""By value of `BlockClass`."""


class KvPanel(Panel):
    NUMBER: ClassVar[int] = 2
    TITLE: ClassVar[str] = "KV"
    HELP: ClassVar[str] = """\
Every usable block is in exactly one class; the four add up to the pool.
  # held         by one request
  & shared       by several, counted once
  c cached-free  reusable content, free to take
  . empty        nothing in it
in-use is held + shared once the step is scheduled, as its head met the pool; what its finishers free is reported as
"after the step", which the bar and the map show. reclaimable is the rest of the pool; slots = token slots of used
blocks that are filled; hits = prompt tokens of first admissions that the prefix cache gave, and over which time.
groups: blocks in the requests' tables by kind of layer, those of several counted by each: full attention keeps all,
a window its newest tokens, a state-space layer a state.
host: blocks kept in the host's memory behind the pool, requests whose state is being loaded from or stored to it, and
the share of hits (as above) that came from there.
The bar is sorted by class. | is the watermark: while anything runs, admission leaves that many blocks free,
so a request that would push the bar past it waits.
The map below shows the pool in physical order. A cell stands for several blocks when the pool is larger than
the map; it shows the class most of them are in."""

    def headline(self) -> Pieces:
        moment, header = self.view.moment, self.view.history.header
        if moment.record is None:
            return [("no steps yet", "muted")]
        blocks = moment.record.blocks
        after, used, total = blocks.held + blocks.shared, blocks_in_use(moment.record), pool_size(blocks)
        pieces = [
            (f"in-use {used}/{total}", "text"),
            (text.share(used, total), "text"),
            (f"reclaimable {total - used}", "text"),
        ]
        more = self._hits()
        if header is not None:
            more.append((f"{header.block_size} tok/blk", "muted"))
        if after != used:
            more.insert(0, (f"after the step {after}", "muted"))
            if self.size.width < COMPACT[0]:  # what is reclaimable is the difference
                pieces[2:] = [more.pop(0)]
        if self.size.height <= _NO_ROOM_BELOW:
            more[:0] = [(f"{kind} {held}", "text") for kind, held in self._held_by_kind(moment.record.group_blocks)]
            if host := moment.record.host_blocks:
                more.insert(0, (f"host {text.share(host[0], host[1])}", "text"))
        slots = after * header.block_size if header is not None else 0
        if slots:
            more.append((f"slots {text.share(blocks.stored_tokens, slots)}", "muted"))
        return self._fitting(pieces, more)

    def _fitting(self, pieces: Pieces, more: Pieces) -> Pieces:
        """`pieces`, and of `more` what has room in the rule."""
        room = self.size.width - len("-[2] KV ") - sum(len(words) + 3 for words, _ in pieces)
        for words, role in more:
            if len(words) + 3 <= room:
                pieces.append((words, role))
                room -= len(words) + 3
        return pieces

    def _hits(self) -> Pieces:
        """The share of admitted prompt tokens that the prefix cache gave."""
        view = self.view
        if not view.moment.state.knobs.get("enable_prefix_caching"):
            return []
        rates = view.history.rates(view.moment, view.window_s)
        if rates is None or rates.hit_rate is None:
            return []
        return [(f"hits {text.share(rates.hit_rate, 1)}/{text.duration(rates.span_s).replace('.0s', 's')}", "text")]

    def body(self, width: int, height: int) -> list[Line]:
        record = self.view.moment.record
        if record is None:
            return []
        lines = [self._bar(record.blocks, width), self._legend(record.blocks, width)]
        if record.group_blocks and height > 3:
            lines.append(self._groups(record.group_blocks, width))
        if record.host_blocks and height > 3:
            lines.append(self._host(record.host_blocks, width))
        lines = lines[:height]
        if height > 2:
            lines += self._map(self.view.moment.state.classes, width, height - len(lines))
        return lines

    def _host(self, host: tuple[int, ...], width: int) -> Line:
        """The memory behind the pool: how full it is, what goes to it and comes from it."""
        palette = self.view.palette
        used, size, loads, sends = host
        line = Line().add(" host ", palette["muted"]).add(f"{used}/{size}", palette["text"])
        line.add(f" {text.share(used, size)}  loading ", palette["muted"]).add(str(loads), palette["text"])
        line.add("  storing ", palette["muted"]).add(str(sends), palette["text"])
        rates = self.view.history.rates(self.view.moment, self.view.window_s)
        if rates is not None and rates.host_hit_rate is not None:
            line.add(f"  hits {text.share(rates.host_hit_rate, 1)}", palette["text"])
        return line.pad(width, palette["text"])

    def _held_by_kind(self, group_blocks: tuple[int, ...]) -> list[tuple[str, int]]:
        """What each kind of KV group is called, and the blocks in its tables; nothing where there is one group."""
        header = self.view.history.header
        found = []
        for kind in kinds_of(header.config) if header is not None and group_blocks else []:
            times = f" x{len(kind.groups)}" if len(kind.groups) > 1 else ""
            held = sum(group_blocks[place] for place in kind.groups if place < len(group_blocks))
            found.append((kind.label + times, held))
        return found

    def _groups(self, group_blocks: tuple[int, ...], width: int) -> Line:
        """Blocks in the tables of each kind of KV group."""
        palette = self.view.palette
        line = Line().add(" groups ", palette["muted"])
        for kind, held in self._held_by_kind(group_blocks):
            piece = f"  {kind} "
            if line.length + len(piece) + len(str(held)) > width:
                break
            line.add(piece, palette["muted"]).add(str(held), palette["text"])
        return line.pad(width, palette["text"])

    def _bar(self, blocks: Blocks, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        inner = width - 2
        amounts = (blocks.held, blocks.shared, blocks.cached_free, blocks.empty)
        chars: list[str] = []
        styles: list[Style] = []
        for (_, role, word, letter), cells in zip(ORDER, shares(amounts, inner), strict=True):
            if palette.solid and role != "empty":
                label = f" {letter} {word}"
                chars += (label if len(label) < cells else letter[:cells]).ljust(cells)
                styles += [palette.label(role)] * cells
            else:
                chars += getattr(glyphs, role) * cells
                styles += [palette[role]] * cells
        if blocks.watermark:
            at = min(inner - 1, max(0, inner - 1 - round(blocks.watermark * inner / pool_size(blocks))))
            chars[at] = glyphs.watermark
            styles[at] = palette["watermark"]
        edge = palette["muted"]
        return Line().add(glyphs.left, edge).cells(chars, styles).add(glyphs.right, edge)

    def _map(self, classes: Classes, width: int, rows: int) -> list[Line]:
        """Cells in physical order: letters on their colour, or textures."""
        if not len(classes):
            return [Line() for _ in range(rows)]
        palette, glyphs = self.view.palette, self.view.glyphs
        if palette.solid:
            glyph = [LETTERS[role] if role != "empty" else glyphs.empty for role in _ROLES]
            style = [
                palette.texture(role) if role != "empty" else palette.on("faint", "surface") for role in _ROLES
            ]
        else:
            glyph = [getattr(glyphs, role) for role in _ROLES]
            style = [palette[role] for role in _ROLES]
        cells = map_cells(classes, width * rows)
        lines = []
        for row in range(rows):
            kinds = cells[row * width : (row + 1) * width]
            lines.append(Line().runs("".join([glyph[kind] for kind in kinds.tolist()]), kinds, style))
        return lines

    def _legend(self, blocks: Blocks, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        line = Line()
        amounts = (blocks.held, blocks.shared, blocks.cached_free, blocks.empty)
        for (_, role, word, _), amount in zip(ORDER, amounts, strict=True):
            if palette.solid and role != "empty":
                line.add(f" {LETTERS[role]} ", palette.label(role))
            else:
                line.add(getattr(glyphs, role), palette[role])
            line.add(f" {word} " if width >= 70 else " ", palette["muted"])
            line.add(f"{amount}", palette["text"]).add("  ", palette["text"])
        line.add(glyphs.watermark, palette["watermark"])
        line.add(" watermark " if width >= 70 else " ", palette["muted"]).add(
            f"{blocks.watermark}", palette["text"]
        )
        cells = width * max(0, self.size.height - 3)
        per_cell = blocks_per_cell(pool_size(blocks), cells)
        if per_cell:
            num_cells = cells // pool_size(blocks)
            words = f"{num_cells} cells/blk" if num_cells > 1 else f"{per_cell} blk/cell"
            line.right(width, Line().add(words, palette["muted"]), palette["text"])
        return line


def pool_size(blocks: Blocks) -> int:
    """All usable blocks."""
    return blocks.held + blocks.shared + blocks.cached_free + blocks.empty


def blocks_per_cell(num_blocks: int, num_cells: int) -> int:
    """How many blocks a cell of the map represents."""
    return max(1, -(-num_blocks // num_cells)) if num_cells > 0 else 0


def map_cells(classes: Classes, num_cells: int) -> Classes:
    """The class of each cell of the map: that of most of its blocks, on a tie the more used one.

    A pool smaller than the map gives every block the same number of cells.
    """
    per = blocks_per_cell(len(classes), num_cells)
    if per == 1:
        return np.repeat(classes, max(1, num_cells // len(classes)))
    num = -(-len(classes) // per)
    padded = np.full(num * per, 255, dtype=np.uint8)
    padded[: len(classes)] = classes
    groups = padded.reshape(num, per)
    counts = np.stack([(groups == kind).sum(axis=1) for kind in (3, 2, 1, 0)])
    majority: Classes = (3 - counts.argmax(axis=0)).astype(np.uint8)
    return majority
