"""One request's life as lines: phases, latency split, steps, blocks, slow gaps and who made them."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import Layer, draw_columns
from schedtop.console.life.phases import PHASES, USUAL, at_times
from schedtop.console.life.reader import LifeReader
from schedtop.console.life.request_life import RequestLife, Visit
from schedtop.console.past import sample_sizes
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.console.widgets.queue import why_waiting

_MOST_ID = 48
"""Cells of an id in the rule."""
_REREAD_EVERY = 4
_WITHIN_S = 0.01
"""Seconds that reading may take at once: a long life has tens of thousands of steps."""
_TABLE = (
    ("STEP", 8),
    ("DID", 9),
    ("TOKENS", 7),
    ("ACCEPTED", 9),
    ("FROM", 7),
    ("OUT", 4),
    ("KV", 5),
    ("GAP ms", 7),
    ("STEP ms", 8),
    ("BATCH", 11),
)


class LifePanel(Panel):
    NUMBER: ClassVar[int] = 3
    TITLE: ClassVar[str] = "Request"
    HELP: ClassVar[str] = """\
The bar is the request's life, each moment in one part; the parts below it add up to its length: Q queue (arrival
to first scheduled), P prefill (to its first token), D decode, R recompute (prompt and outputs again after a
preemption), V re-queued (waits again), 0 starved (it runs, but steps gave it no token), ! stalled (a slow gap that
decoding alone made). Blank is unknown: no record of it is kept. Marks below: ! slow gap, V preempted.
The columns are its steps: its own tokens in colour, the rest of the batch above them in grey.
A gap is slow above the ITL SLO, or above three medians of the last minute where none is given; one that is not over
counts too. For each the list says what made it long: a preemption, prompt tokens of others in the same step, a
budget that went to others, or the device. Lines marked > are the other way round: what it did to others.
TPOT is of the tokens so far. E2E is there when it ends.
Up and down choose a line, Enter shows its step on the Live screen, Left and Right walk through its steps,
n and N go to the next and the previous request."""

    def __init__(self, view: View, number: int, *, id: str) -> None:
        super().__init__(view, id=id)
        self.number = number
        self.life: RequestLife | None = None
        self._reader = LifeReader(number)
        self.cursor = 0
        self.top = 0
        self.visit: int | None = None
        self._read_at: tuple[int, int, int] | None = None
        self._frames = 0

    def show(self, number: int) -> None:
        """Turn to another request."""
        self.number, self.cursor, self.top, self.visit, self._read_at = number, 0, 0, None, None
        self._reader = LifeReader(number)

    def read(self) -> None:
        """Read the life again where the moment has moved; while it moves, every few frames are sample_sizes."""
        moment = self.view.moment
        self._frames += 1
        key = (self.number, moment.seq, 0)
        if self._read_at is not None and not self._reader.left:
            same = self._read_at[0] == self.number
            if same and (self._read_at[1] == moment.seq or (moment.live and self._frames % _REREAD_EVERY)):
                return
        self._read_at = key
        found = self._reader.read(self.view.history, moment, self.view.options.itl_slo_s, _WITHIN_S)
        self.life = found if found is not None else self.life
        if self._reader.left:
            self.call_later(self._paint_locked)  # after what waits for its turn, such as a key

    def lines(self, width: int, height: int) -> list[Line]:
        self.read()
        return super().lines(width, height)

    def headline(self) -> Pieces:
        life = self.life
        if life is None or life.number != self.number:
            left = self._reader.left
            return [(f"reading its steps: {left} left", "muted") if left else ("no longer known", "warn")]
        arrival = life.arrival
        pieces: Pieces = [(text.identity(arrival.id, _MOST_ID), "accent"), (self._status(life), "text")]
        cached = life.tracked.cached_tokens if life.tracked is not None else 0
        pieces.append((f"prompt {arrival.prompt_tokens}" + (f" ({cached} cached)" if cached else ""), "text"))
        if self.view.history.policy == "priority":
            pieces.append((f"priority {arrival.priority}", "text"))
        if life.preemptions:
            pieces.append((f"preempted {life.preemptions}x", "breach"))
        if not life.complete:
            pieces.append(("partly unknown", "warn"))
        return pieces

    def _status(self, life: RequestLife) -> str:
        if life.finish is not None:
            return f"finished: {text.clean(life.finish.reason)}, {life.finish.output_tokens} out"
        if life.tracked is not None and life.tracked.waiting:
            return ("waits again" if life.preemptions else "waits") + why_waiting(self.view, life.number)
        last = life.visits[-1] if life.visits else None
        doing = last.phase if last is not None else "running"
        if doing == "starved" and life.last_token_s is not None:
            doing += f", no token for {text.ms_unit(life.open_gap_s)}"
        return f"{doing}, {max(0, life.outputs)}/{life.arrival.max_tokens} out"

    def body(self, width: int, height: int) -> list[Line]:
        life = self.life
        if life is None or life.number != self.number:
            return []
        lines = self._whole_id(life, width)
        lines += [*self._phases(life, width), self._figures(life, width)]
        rows = max(0, min(12, (height - 12) // 3))
        if rows:
            lines += self._steps(life, width, rows)
        lines.append(self._blocks(life, width))
        lines += self._texts(width, 2 if height >= 24 else 0)
        room = height - len(lines)
        blames = self._blames(life, width, max(2, min(room, max(room // 2, room - len(life.visits) - 1))))
        lines += blames
        if height - len(lines) >= 4:
            lines += self._table(life, width, height - len(lines))
        return lines

    def _whole_id(self, life: RequestLife, width: int) -> list[Line]:
        """The id where the rule has no room for all of it."""
        whole = text.identity(life.arrival.id)
        if len(whole) <= _MOST_ID:
            return []
        pieces = [whole[at : at + width - 2] for at in range(0, len(whole), width - 2)]
        return [Line().add(f" {piece}", self.view.palette["accent"]) for piece in pieces]

    # Parts

    def _phases(self, life: RequestLife, width: int) -> list[Line]:
        palette, glyphs = self.view.palette, self.view.glyphs
        start_s, length_s = life.arrival.arrival_s, max(1e-9, life.length_s)
        cells = width - 2
        kinds = at_times(life.spans, [start_s + (cell + 0.5) * length_s / cells for cell in range(cells)])
        chars = [PHASES[kind].letter for kind in kinds]
        bar = Line().add(glyphs.left, palette["muted"]).cells(chars, [self._part_style(kind) for kind in kinds])
        bar.add(glyphs.right, palette["muted"])
        return [bar, self._phase_marks(life, start_s, length_s, width), *self._legend(life, width)]

    def _part_style(self, kind: str) -> Style:
        palette, role = self.view.palette, PHASES[kind].role
        if kind in ("queue", "unknown"):
            return palette.on("faint", "surface")
        return palette.texture(role) if palette.solid else palette[role]

    def _legend(self, life: RequestLife, width: int) -> list[Line]:
        """Every part that took time; where one line has room and all is known, also the usual ones that took none."""
        split = life.split()
        took = self._parts({kind: seconds for kind, seconds in split.items() if seconds > 0}, life.slow_s, width)
        if not life.complete:
            return took
        usual = {kind: seconds for kind, seconds in split.items() if seconds > 0 or kind in USUAL}
        lines = self._parts(usual, life.slow_s, width)
        return lines if len(lines) == 1 else took

    def _parts(self, parts: dict[str, float], slow_s: float, width: int) -> list[Line]:
        palette, lines = self.view.palette, [Line()]
        for kind, seconds in parts.items():
            letter, role = PHASES[kind]
            known = kind != "stalled" or math.isfinite(slow_s)
            part = Line().add(f" {letter} ", palette.label(role) if palette.solid else palette[role])
            part.add(f" {kind} ", palette["muted"])
            part.add(text.duration(seconds) if known else text.UNKNOWN, palette["text"])
            gap = 2 if lines[-1].length else 0
            if lines[-1].length + gap + part.length > width:
                lines.append(Line())
            else:
                lines[-1].add(" " * gap, palette["text"])
            lines[-1].extend(part.pieces)
        return lines

    def _phase_marks(self, life: RequestLife, start_s: float, length_s: float, width: int) -> Line:
        palette = self.view.palette
        chars = [" "] * width
        styles = [palette["text"]] * width
        marks = [(visit.end_s, "!", "warn") for visit in life.slow_gaps]
        marks += [(life.until_s, "!", "warn")] if life.open_is_slow else []
        marks += [(record.start_s, "V", "breach") for record, _ in life.lost]
        for at_s, mark, role in marks:
            cell = 1 + min(width - 3, max(0, int((at_s - start_s) / length_s * (width - 2))))
            chars[cell], styles[cell] = mark, palette[role] + Style(bold=True)
        return Line().cells(chars, styles)

    def _figures(self, life: RequestLife, width: int) -> Line:
        """As many figures as there is room for, the most telling first."""
        palette, line = self.view.palette, Line()
        for name, value in _figures_of_life(life):
            if line.length + len(name) + len(value) + 3 > width:
                break
            line.add(f" {name} ", palette["muted"]).add(value, palette["text"]).add(" ", palette["text"])
        return line.pad(width, palette["text"])

    def _steps(self, life: RequestLife, width: int, rows: int) -> list[Line]:
        """Its steps as columns, newest at the right, and a line about the chosen one."""
        palette, glyphs = self.view.palette, self.view.glyphs
        shown = life.visits[-width:]
        if not shown:
            return [Line().add(" it has not been in a step yet", palette["muted"])]
        each = max(1, min(8, width // len(shown)))
        parts = np.array([_stack(visit) for visit in shown], dtype=np.float64)
        parts /= max(float(parts.sum(axis=1).max()), 1.0)
        layers = (
            Layer("decode", "D", glyphs.decode),
            Layer("prefill", "P", glyphs.prefill),
            Layer("warn", "R", glyphs.shared),
            Layer("draft", "S", glyphs.draft),
            Layer("faint", " ", glyphs.cached),
        )
        blank = " " * (width - each * len(shown))
        lines = [
            Line().add(blank, palette["text"]).extend(line.pieces)
            for line in draw_columns(np.repeat(parts, each, axis=0), rows, layers, palette, glyphs)
        ]
        index = self._visit_index(life)
        marks = Line().add(blank, palette["text"])
        for at, visit in enumerate(shown, start=len(life.visits) - len(shown)):
            slow = visit.gap_s is not None and visit.gap_s > life.slow_s
            letter, colour = PHASES["starved"]
            starved = visit.phase == "starved"
            mark = glyphs.up if at == index else "!" if slow else letter if starved else glyphs.rule
            role = "accent" if at == index else "warn" if slow else colour if starved else "rule"
            marks.add(mark.ljust(each, mark if at == index else glyphs.rule), palette[role])
        return [*lines, marks, self._visit_line(life.visits[index], width)]

    def _visit_index(self, life: RequestLife) -> int:
        seqs = [visit.seq for visit in life.visits]
        return seqs.index(self.visit) if self.visit in seqs else len(seqs) - 1

    def _visit_line(self, visit: Visit, width: int) -> Line:
        palette = self.view.palette
        words = f" step {visit.step}: {visit.phase} {text.plural(visit.tokens, 'token')}"
        if visit.drafts:
            words += f" ({visit.accepted}/{visit.drafts} drafts accepted)"
        words += f" from {visit.computed}, {visit.emitted} out, {text.plural(visit.blocks, 'block')}"
        line = Line().add(words, palette["text"])
        batch = f"batch {visit.batch_tokens}/{visit.budget} tokens, {text.ms_unit(visit.end_s - visit.start_s)}"
        gap = f", gap {text.ms_unit(visit.gap_s)}" if visit.gap_s is not None else ""
        return line.right(width, Line().add(batch + gap + " ", palette["muted"]), palette["text"])

    def _blocks(self, life: RequestLife, width: int) -> Line:
        palette, others = self.view.palette, life.sharers
        line = Line().add(" blocks ", palette["muted"]).add(str(life.blocks), palette["text"])
        if life.full_blocks is not None and life.blocks:
            line.add(f"  {life.full_blocks} of full attention", palette["muted"])
        if others:
            line.add("  shared with ", palette["muted"])
            for place, (number, common) in enumerate(others):
                piece = f"{', ' if place else ''}{self.view.history.name(number)} ({common})"
                if line.length + len(piece) > width - 8:
                    line.add(f", {len(others) - place} more", palette["muted"])
                    break
                line.add(piece, palette["shared"])
        return line

    def _texts(self, width: int, rows: int) -> list[Line]:
        """The end of what it was asked and of what it said, where the engine sends it."""
        palette, life = self.view.palette, self.life
        assert life is not None
        lines = []
        for label, words in (
            ("asked", life.arrival.preview),
            ("says", self.view.history.texts.get(life.number, "")),
        ):
            if words and rows:
                tail = text.clean(words[-4 * width :], 4 * width)
                room = width - len(label) - 3
                shown = tail if len(tail) <= room else f"~{tail[-room + 1 :]}"
                lines.append(Line().add(f" {label} ", palette["muted"]).add(shown, palette["text"]))
        return lines[:rows]

    def _blames(self, life: RequestLife, width: int, height: int) -> list[Line]:
        palette, glyphs = self.view.palette, self.view.glyphs
        own = sum(not blame.caused for blame in life.blames)
        limit = "" if life.slow_s == float("inf") else f" over {text.ms_unit(life.slow_s)}"
        title = Line().add(f" slow gaps{limit}: {own}, and what made them long", palette.on("muted", "surface"))
        title.pad(width, palette.on("muted", "surface"))
        if not life.blames:
            return [title, Line().add(" none", palette["muted"])]
        self.cursor = max(0, min(self.cursor, len(life.blames) - 1))
        room = max(1, height - 1)
        self.top = max(min(self.top, self.cursor), self.cursor - room + 1, 0)
        lines = [title]
        for index, blame in enumerate(life.blames[self.top : self.top + room], start=self.top):
            under = "cursor" if index == self.cursor else "background"
            line = Line().add(glyphs.cursor if index == self.cursor else " ", palette.on("accent", under))
            mark, role = (">", "accent") if blame.caused else ("!", "warn")
            line.add(f"{mark} ", palette.on(role, under))
            line.add(f"step {blame.step:<7} {text.ms_unit(blame.seconds):>9}  ", palette.on("muted", under))
            line.add(blame.words, palette.on("text", under))
            lines.append(line.pad(width, palette.on("text", under)))
        return lines

    def _table(self, life: RequestLife, width: int, height: int) -> list[Line]:
        """Its steps in figures, the chosen one in sight, the newest last."""
        palette = self.view.palette
        muted = palette.on("muted", "surface")
        fields = _fields(width)
        titles = " ".join(f"{title:>{size}}" for title, size in fields)
        lines = [Line().add(f"   {titles}", muted).pad(width, muted)]
        if not life.visits:
            return lines
        index, room = self._visit_index(life), height - 1
        first = max(0, min(index - room // 2, len(life.visits) - room))
        for at, visit in enumerate(life.visits[first : first + room], start=first):
            under = "cursor" if at == index else "background"
            late = visit.gap_s is not None and visit.gap_s > life.slow_s
            figures = _figures_of(visit)
            line = Line().add(" ! " if late else "   ", palette.on("warn", under))
            for title, size in fields:
                figure = figures[title]
                role = PHASES[visit.phase].role if title == "DID" else "text"
                line.add(f"{figure:>{size}} ", palette.on(role, under))
            lines.append(line.pad(width, palette.on("text", under)))
        return lines

    # Keys

    def move(self, lines: int) -> None:
        if self.life is not None and self.life.blames:
            self.cursor = max(0, min(len(self.life.blames) - 1, self.cursor + lines))

    def walk(self, offset: int) -> None:
        """Choose an earlier or later step of the request."""
        if self.life is not None and self.life.visits:
            index = max(0, min(len(self.life.visits) - 1, self._visit_index(self.life) + offset))
            last = index == len(self.life.visits) - 1
            self.visit = None if last else self.life.visits[index].seq

    def chosen_seq(self) -> int | None:
        """The step that Enter shows: the selected line's, or the chosen step of the request."""
        life = self.life
        if life is None:
            return None
        if self.visit is not None:
            return self.visit
        if life.blames:
            return life.blames[min(self.cursor, len(life.blames) - 1)].seq
        return life.visits[-1].seq if life.visits else None

    def copied(self) -> str:
        life = self.life
        if life is None:
            return ""
        parts = " ".join(f"{name}={text.duration(seconds)}" for name, seconds in life.split().items() if seconds)
        return f"{text.identity(life.arrival.id)} {self._status(life)} {parts}"


def _stack(visit: Visit) -> tuple[int, int, int, int, int]:
    """Tokens of a step: its own decode, prefill, recompute and drafts, and everybody else's."""
    decode, prefill, again = (
        visit.tokens - visit.drafts if visit.phase == phase else 0 for phase in ("decode", "prefill", "recompute")
    )
    return decode, prefill, again, visit.drafts, max(0, visit.batch_tokens - visit.tokens)


def _figures_of_life(life: RequestLife) -> list[tuple[str, str]]:
    """Name and value of each figure, the most telling first."""
    finish = life.finish
    figures = [("TTFT", text.ms(life.ttft_s)), ("TPOT", text.ms(life.tpot_s))]
    figures.append(("E2E", text.duration(finish.e2e_s if finish is not None else None)))
    if finish is None:
        figures.append(("age", text.duration(life.length_s)))
    slow = len(life.slow_gaps) + life.open_is_slow
    figures.append(("slow gaps", str(slow) if math.isfinite(life.slow_s) else text.UNKNOWN))
    gaps = np.array([visit.gap_s for visit in life.visits if visit.gap_s is not None])
    if len(gaps):
        for name, share in (("ITL p50", 0.5), ("p95", 0.95)):
            known = len(gaps) >= sample_sizes.needed(share)
            figures.append((name, text.ms(float(np.quantile(gaps, share))) if known else sample_sizes.LACK))
        figures += [("max", text.ms(float(gaps.max()))), ("n", str(len(gaps)))]
    if life.recomputed_tokens:
        figures.append(("computed again", f"{life.recomputed_tokens} tok"))
    if life.arrival.adapter:
        figures.append(("adapter", text.identity(life.arrival.adapter_label, 20)))
    if life.arrival.parent:
        figures.append(("parent", text.identity(life.arrival.parent, 20)))
    if life.arrival.images:
        figures.append(("images", str(len(life.arrival.images))))
    if life.arrival.client:
        figures.append(("client", text.clean(life.arrival.client, 20)))
    wait_s = life.arrival.client_wait_s
    if wait_s is not None:
        figures.append(("client wait", text.ms(wait_s)))
    if wait_s is not None or life.front_end is not None:
        figures.append(("client TTFT", text.ms(life.client_ttft_s)))
        figures.append(("client E2E", text.duration(life.client_e2e_s)))
    return figures


def _fields(width: int) -> list[tuple[str, int]]:
    """The table's columns that fit, without the least telling ones where there is little room."""
    fields = list(_TABLE)
    for title in ("ACCEPTED", "KV", "BATCH"):
        if 3 + sum(size + 1 for _, size in fields) > width:
            fields = [field for field in fields if field[0] != title]
    return fields


def _figures_of(visit: Visit) -> dict[str, str]:
    return {
        "STEP": str(visit.step),
        "DID": visit.phase,
        "TOKENS": str(visit.tokens),
        "ACCEPTED": f"{visit.accepted}/{visit.drafts}" if visit.drafts else text.NONE,
        "FROM": str(visit.computed),
        "OUT": str(visit.emitted),
        "KV": str(visit.blocks),
        "GAP ms": text.ms(visit.gap_s),
        "STEP ms": text.ms(visit.end_s - visit.start_s),
        "BATCH": f"{visit.batch_tokens}/{visit.budget}",
    }
