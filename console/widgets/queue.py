"""[5] Queue: who waits, and what the head waits for."""

from __future__ import annotations

from typing import ClassVar

from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD
from schedtop.console.view import View
from schedtop.console.widgets.panel import Panel, Pieces
from schedtop.engine.contract.limiters import describe_deferral, describe_head, limiter_help
from schedtop.engine.contract.telemetry import Head

_LEAST_ID, _MOST_ID = 10, 18


class QueuePanel(Panel):
    NUMBER: ClassVar[int] = 5
    TITLE: ClassVar[str] = "Queue"
    HELP: ClassVar[str] = f"""\
Requests are admitted in order. The head has a reason; the others are behind it, or are passed over with their own.
{limiter_help()}
Under priority a lower number is more urgent; `inverted` marks a more urgent request that waits while less
urgent ones run."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self.top = 0

    def headline(self) -> Pieces:
        moment = self.view.moment
        waiting = moment.state.num_waiting
        record = moment.record
        pieces: Pieces = [(f"{waiting} waiting", "text")]
        if record is not None and (deferred := sum(count for _, count in record.deferred)):
            pieces.append((f"{deferred} deferred", "text"))
        if record is not None and record.oldest_wait_s is not None:
            pieces.append((f"oldest {text.duration(record.oldest_wait_s)}", "text"))
        return pieces

    def body(self, width: int, height: int) -> list[Line]:
        view, state = self.view, self.view.moment.state
        palette = view.palette
        queue = state.queue(view.history.policy)
        if not queue:
            return [Line().add(" Queue is empty", palette["muted"])]
        self.top = max(0, min(self.top, len(queue) - height))
        record = view.moment.record
        head = record.head if record is not None and record.head is not None else None
        first = head.number if head is not None else queue[0]
        numbers = queue[self.top : self.top + height]
        id_width = min(_MOST_ID, max(_LEAST_ID, *(len(self._called(number)) for number in numbers)))
        lines: list[Line] = []
        shown = 0
        for number in numbers:
            if number == first:
                found = self._head(number, head, id_width, width)
            else:
                found = [self._behind(number, first, id_width, width)]
            if lines and len(lines) + len(found) > height:
                break
            lines += found
            shown += 1
        hidden = len(queue) - self.top - shown
        if hidden > 0 and shown > 1:
            if len(lines) == height:
                lines.pop()
                hidden += 1
            lines.append(Line().add(f"  {view.glyphs.down} {hidden} more", palette["muted"]))
        return lines[:height]

    def _head(self, number: int, head: Head | None, id_width: int, width: int) -> list[Line]:
        """Who is first and what holds it: in a second line where the first is too short for that."""
        palette = self.view.palette
        name = text.fit(text.identity(self._called(number), id_width), id_width)
        line = Line().add(f"{self.view.glyphs.cursor} {name} ", palette["text"] + BOLD)
        line.add("HEAD ", palette["warn"])
        if head is not None and head.inverted:
            line.add("inverted ", palette["breach"])
        words = describe_head(head) if head is not None else "not looked at yet"
        wait = self._wait(number)
        if line.length + len(words) + wait.length < width:
            return [line.add(words, palette["text"]).right(width, wait, palette["text"])]
        return [line.right(width, wait, palette["text"]), Line().add(f"    {words}", palette["text"])]

    def _behind(self, number: int, first: int, id_width: int, width: int) -> Line:
        view, palette = self.view, self.view.palette
        tracked = view.moment.state.requests.get(number)
        line = Line().add(
            f"  {text.fit(text.identity(self._called(number), id_width), id_width)} ", palette["text"]
        )
        if tracked is not None and tracked.deferred:
            line.add(describe_deferral(tracked.deferred), palette["text"])
        else:
            line.add(f"behind {text.identity(self._called(first), _MOST_ID)}", palette["muted"])
        if tracked is not None and tracked.preemptions:
            line.add(f"  preempted {tracked.preemptions}x", palette["warn"])
        return line.right(width, self._wait(number), palette["text"])

    def _called(self, number: int) -> str:
        tracked = self.view.moment.state.requests.get(number)
        return text.identity(tracked.arrival.id, 40) if tracked is not None else self.view.history.name(number)

    def _wait(self, number: int) -> Line:
        """Flush right: the priority where it counts, and how long it waits."""
        palette, state = self.view.palette, self.view.moment.state
        tracked = state.requests.get(number)
        if tracked is None:
            return Line().add(f"{text.NONE} ", palette["text"])
        line = Line()
        if self.view.history.policy == "priority":
            line.add(f"prio {tracked.arrival.priority}  ", palette["muted"])
        return line.add(f"{text.duration(state.clock_s - tracked.queued_since_s)} ", palette["text"])

    def move(self, lines: int) -> None:
        self.top = max(0, self.top + lines)


def why_waiting(view: View, number: int) -> str:
    """What holds a waiting request: its own reason at the head or if it is not ready, else whom it is behind."""
    tracked = view.moment.state.requests.get(number)
    if tracked is not None and tracked.deferred:
        return f": {describe_deferral(tracked.deferred)}"
    record = view.moment.record
    head = record.head if record is not None else None
    if head is None:
        return ""
    reason = describe_head(head)
    return f": {reason}" if head.number == number else f" behind {view.history.name(head.number)} ({reason})"
