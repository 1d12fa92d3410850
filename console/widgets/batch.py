"""[1] Batch: what one step was made of, and the steps before it as columns."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from rich.style import Style
from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.stacked_columns import Layer, draw_columns, shares
from schedtop.console.view import STEPS_PER_COLUMN, View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.console.widgets.timeline import LEAST_HEIGHT, LEAST_WIDTH, Timeline
from schedtop.engine.contract.reading import draft_positions
from schedtop.engine.contract.telemetry import MOST_DRAFTS, Limiter, StepRecord

CLASSES = (("D", "decode"), ("P", "prefill"), ("S", "draft"), (".", "unused"))
DRAFT_STEPS = 100
"""Steps that the acceptance of drafts is reported over, at most."""
MARKS = (("K", "accent"), ("V", "breach"), ("A", "ok"))


class Column(NamedTuple):
    """Tokens of one column's steps: per class, the budget, the first and last seq, and what happened."""

    decode: float
    prefill: float
    draft: float
    budget: float
    first: int
    last: int
    mark: str


class BatchPanel(Panel):
    NUMBER: ClassVar[int] = 1
    TITLE: ClassVar[str] = "Batch"
    HELP: ClassVar[str] = """\
The timeline shows the same time in every lane, newest at the right. A column holds many steps and keeps the peak:
  tokens    of the step with the most, by class, against the largest budget in sight
  step      length of the steps: the median filled, the longest as a cap
  KV        blocks in use, and above them cached blocks that can be reclaimed
  run/wait  requests running, and above them waiting
  TTFT      p95 filled, of those who got their first token and those who wait for it; the longest as a cap
  ITL       p95 filled, the longest as a cap
  host      processors used by the engine's process, and above them the time its first thread waited for one
  GPU       busy, and after @ its clock as a share of the highest; only where the engine describes one
TTFT and ITL past their SLO (the line) are drawn as a breach; beside them stands the p95, > a lower bound. The line in
KV is the watermark. Left and Right move the cursor, whose values stand at the right; Enter shows the longest step of
its column; + and - choose 10 s, 1 min, 5 min, 1 h or all; z shows single steps.
The bar is one step: the tokens it scheduled, by class, against its token budget.
  D decode    the newest token of a request that is past its prompt
  P prefill   prompt tokens, or tokens computed again after a preemption
  S draft     speculated tokens that this step verifies
  . unused    budget that nothing could take; the limiter says what stopped the scheduler
tokens = scheduled / max_num_scheduled_tokens; rows = input rows / max_num_batched_tokens; seq = still running after
the step, whose finished requests are gone, / max_num_seqs.
drafts accepted: of a request's first draft, second and so on, over the last 100 steps; one can only hold where
those before it did.
Zoomed, the last steps are shown below it, newest at the right; a column's full height is the largest budget in sight.
Marks under the columns: A a request was admitted, V one was preempted, K a knob was changed.
There Left and Right show an earlier step in all panels, and + and - choose how many steps share a column, whose
tokens are then averaged. End returns to the present."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.timeline = Timeline(view)

    @property
    def shows_steps(self) -> bool:
        """The last steps are shown as columns, in place of the timeline."""
        return self.zoomed or self.size.width < LEAST_WIDTH + 10 or self.size.height < LEAST_HEIGHT

    @property
    def title(self) -> str:
        return "Batch" if self.shows_steps else "Timeline"

    def step(self) -> StepRecord | None:
        """The shown step; while the engine is idle, its last one."""
        moment = self.view.moment
        if moment.record is not None and moment.record.executed:
            return moment.record
        return next(iter(self.view.history.steps(moment.seq, 1)), None)

    def headline(self) -> Pieces:
        record = self.step()
        if record is None:
            return [("no steps yet", "muted")]
        cap = self.view.moment.state.knobs.get("max_num_seqs")
        pieces = [
            *([] if self.shows_steps else self.timeline.headline(self.size.width)),
            (f"step {record.step}", "text"),
            *self._in_sight(),
            (text.ms_unit(record.end_s - record.start_s), "text"),
            (f"tok {record.scheduled_tokens}/{record.token_budget}", "text"),
            (f"rows {record.input_rows}/{record.input_budget}", "text"),
            (f"seq {record.running}/{text.value(cap)}", "text"),
        ]
        if self.view.steps_per_column > 1:
            pieces.append((f"{self.view.steps_per_column} steps/column", "accent"))
        return pieces

    def _in_sight(self) -> Pieces:
        """Which steps the columns show, while they do not end with the newest."""
        steps = self.shown_steps() if self.view.pinned is not None and self.shows_steps else []
        return [(f"columns {steps[0].step}-{steps[-1].step}", "accent")] if steps else []

    def body(self, width: int, height: int) -> list[Line]:
        record = self.step()
        lines = [self._bar(record, width), self._legend(record, width)]
        if not self.shows_steps:
            return [*self.timeline.lines(width, height - 2), *lines]
        if height >= 9 and (drafts := self._drafts(width)) is not None:
            lines.append(drafts)
        rows = max(height - len(lines) - (2 if height >= 8 else 1), min(1, height - len(lines)))
        if rows < 1:
            return lines[:height]
        columns = self.columns(width)
        lines += self._history(columns, width, rows)
        if len(lines) < height:
            lines.append(self._marks(columns, width))
        if height >= 8:
            lines.append(self._range(columns, width))
        return lines

    # The bar of one step

    def _bar(self, record: StepRecord | None, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        line, inner = Line(), width - 2
        edge = palette["muted"]
        line.add(glyphs.left, edge)
        if record is None:
            return line.pad(width - 1, palette["faint"], glyphs.unused).add(glyphs.right, edge)
        amounts = step_classes(record)
        for (letter, role), amount, cells in zip(CLASSES, amounts, shares(amounts, inner), strict=True):
            self._segment(line, letter, role, amount, cells)
        return line.add(glyphs.right, edge)

    def _segment(self, line: Line, letter: str, role: str, amount: int, cells: int) -> None:
        palette, glyphs = self.view.palette, self.view.glyphs
        glyph = getattr(glyphs, role)
        if role == "unused" or not palette.solid:
            line.add(glyph * cells, palette[role])
            return
        label = f" {letter} {amount}"
        label = label if len(label) < cells else f" {letter}"
        if len(label) > cells:
            label = letter[:cells]
        line.add(label.ljust(cells), palette.label(role))

    def _legend(self, record: StepRecord | None, width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        amounts = step_classes(record) if record is not None else (0, 0, 0, 0)
        line = Line()
        for (letter, role), amount in zip(CLASSES, amounts, strict=True):
            glyph = getattr(glyphs, role)
            if palette.solid and role != "unused":
                line.add(f" {letter} ", palette.label(role))
            elif glyph == letter or role == "unused":
                line.add(glyph, palette[role])
            else:
                line.add(glyph, palette[role]).add(f" {letter}", palette["text"])
            line.add(f" {role} " if width >= 90 else " ", palette["muted"]).add(f"{amount}", palette["text"])
            line.add("  ", palette["text"])
        if record is not None:
            line.right(width, self._limiter(record), palette["text"])
        return line

    def _limiter(self, record: StepRecord) -> Line:
        palette = self.view.palette
        free = record.limiter == Limiter.NONE
        words = "no work left" if free else text.clean(record.limiter, 24).replace("_", " ")
        return Line().add("limiter ", palette["muted"]).add(words, palette["muted" if free else "warn"])

    def _drafts(self, width: int) -> Line | None:
        """Share of drafts accepted at each position, over the last steps in sight; None if there were none."""
        steps = self.view.history.steps(self.view.edge, DRAFT_STEPS)
        found = [draft_positions(record) for record in steps if record.draft_tokens]
        drafted, accepted = sum(found, np.zeros((2, MOST_DRAFTS), int))
        if not drafted.any():
            return None
        palette, header = self.view.palette, self.view.history.header
        line = Line().add("drafts accepted", palette["muted"])
        for place, count in enumerate(drafted.tolist()):
            if count:
                line.add(f"  {place + 1} ", palette["muted"])
                line.add(text.share(int(accepted[place]), count), palette["text"])
        who = text.clean(header.settings.get("drafts", ""), 40) if header is not None else ""
        over = f"over {text.plural(len(steps), 'step')}" + (f", by {who}" if who else "")
        return line.right(width, Line().add(over, palette["muted"]), palette["text"])

    # The steps before

    def columns(self, width: int) -> list[Column]:
        """At most `width` columns that end at the view's edge, which moves so that an inspected step is in sight."""
        view = self.view
        found = self._columns_up_to(view.edge, width)
        if view.pinned is not None and found and view.moment.seq < found[0].first:
            ahead = view.history.neighbour(view.moment.seq, width * view.steps_per_column // 2)
            view.edge = view.moment.seq if ahead is None else ahead
            found = self._columns_up_to(view.edge, width)
        return found

    def _columns_up_to(self, edge: int, width: int) -> list[Column]:
        per = self.view.steps_per_column
        steps = self.view.history.steps(edge, width * per)
        if per > 1 and steps:
            # Columns keep their steps while new ones come: cut at multiples of the column's size.
            first = -(steps[0].step // -per) * per
            steps = [record for record in steps if record.step >= first]
        gaps = {gap.seq for gap in self.view.history.gaps}
        return [_column(steps[at : at + per], gaps) for at in range(0, len(steps), per)][-width:]

    def shown_steps(self) -> list[StepRecord]:
        """The steps that the columns show."""
        columns = self.columns(max(1, self.size.width))
        return list(self.view.history.between(columns[0].first, columns[-1].last)) if columns else []

    def _history(self, columns: list[Column], width: int, rows: int) -> list[Line]:
        palette = self.view.palette
        blank = width - len(columns)
        if not columns:
            return [Line().pad(width, palette["text"]) for _ in range(rows)]
        top = max(column.budget for column in columns) or 1
        tokens = np.array(
            [(c.decode, c.prefill, c.draft, max(0.0, c.budget - c.decode - c.prefill - c.draft)) for c in columns]
        )
        layers = tuple(
            Layer(role, letter, getattr(self.view.glyphs, role), ground=role == "unused")
            for letter, role in CLASSES
        )
        lines = draw_columns(tokens / top, rows, layers, palette, self.view.glyphs)
        return [Line().pad(blank, palette["text"]).extend(line.pieces) for line in lines]

    def _marks(self, columns: list[Column], width: int) -> Line:
        palette, glyphs = self.view.palette, self.view.glyphs
        roles = dict(MARKS) | {"G": "warn"}
        rest = palette["rule"]
        chars, styles = [], []
        for column in columns:
            shown = self.view.pinned is not None and column.first <= self.view.moment.seq <= column.last
            if shown:
                chars.append(glyphs.up)
                styles.append(palette["accent"] + Style(reverse=True))
            else:
                chars.append(column.mark or glyphs.rule)
                styles.append(palette[roles[column.mark]] if column.mark else rest)
        return Line().pad(width - len(columns), palette["text"]).cells(chars, styles)

    def _range(self, columns: list[Column], width: int) -> Line:
        palette = self.view.palette
        history = self.view.history
        line = Line()
        if not columns:
            return line
        oldest, newest = (history.index(columns[0].first), history.index(columns[-1].last))
        if oldest is None or newest is None:
            return line
        muted = palette["muted"]
        line.add(f"oldest {history.records[oldest].step}", muted)
        for letter, word in (("A", "admit"), ("V", "preempt"), ("K", "knob")):
            line.add("  ", muted).add(letter, palette[dict(MARKS)[letter]]).add(f" {word}", muted)
        budget = max(column.budget for column in columns)
        line.add(f"  full height {budget:.0f} tokens", muted)
        last, known = history.records[newest].step, history.live.step
        words = f"newest {last}" if last >= known else f"up to {last}, newest {known}"
        kept = f"  kept: from step {history.records[0].step} on"
        if line.length + len(kept) + len(words) < width:
            line.add(kept, muted)
        return line.right(width, Line().add(words, muted), muted)

    # Keys

    def move(self, lines: int) -> None:
        """Up and down do what left and right do, so that no key is dead here."""
        self.look_along(lines)

    def move_end(self, last: bool) -> None:
        if last:
            self.view.release()
        elif self.view.history.records:
            self.view.pin(self.view.history.records[0].seq)

    def inspect(self, offset: int) -> None:
        """Show the step `offset` steps from the shown one; beyond the newest the view is live again."""
        view = self.view
        seq = view.neighbour(offset)
        if seq is not None:
            view.pin(seq)
        elif offset > 0:
            view.release()

    def look_along(self, direction: int) -> None:
        """An earlier or later step, or column of the timeline."""
        if self.shows_steps:
            self.inspect(direction * self.view.steps_per_column)
        else:
            self.timeline.move(direction, self.size.width)

    def resize_columns(self, direction: int) -> None:
        """More (+1) or fewer (-1) steps in a column; a longer or shorter range of the timeline."""
        if not self.shows_steps:
            self.timeline.resize(direction)
            return
        index = STEPS_PER_COLUMN.index(self.view.steps_per_column) + direction
        self.view.steps_per_column = STEPS_PER_COLUMN[min(max(index, 0), len(STEPS_PER_COLUMN) - 1)]

    def click_line(self, y: int, x: int) -> None:
        if not self.shows_steps:
            self.timeline.point(x, self.size.width)
            return
        columns = self.columns(self.size.width)
        at = x - (self.size.width - len(columns))
        if y >= 2 and 0 <= at < len(columns):
            self.view.pin(columns[at].last)


def step_classes(record: StepRecord) -> tuple[int, int, int, int]:
    """Tokens of a step as decode, prefill, draft, unused; they add up to the budget."""
    unused = max(0, record.token_budget - record.scheduled_tokens)
    return record.decode_tokens, record.prefill_tokens, record.draft_tokens, unused


def _column(steps: list[StepRecord], gaps: set[int]) -> Column:
    mark = ""
    for record in steps:
        found = "K" if record.knobs else "V" if record.preemptions else "A" if record.admissions else ""
        if record.seq in gaps:
            found = found or "G"
        if found and (not mark or "KVAG".index(found) < "KVAG".index(mark)):
            mark = found
    tokens = [
        (record.decode_tokens, record.prefill_tokens, record.draft_tokens, record.token_budget) for record in steps
    ]
    decode, prefill, draft, budget = (sum(part) / len(steps) for part in zip(*tokens, strict=True))
    return Column(decode, prefill, draft, budget, steps[0].seq, steps[-1].seq, mark)
