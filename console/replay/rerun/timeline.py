"""The timeline of two runs: the Live screen's lanes, each with the recorded run above and the re-run below."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from schedtop.console.replay.rerun.panels import RunsPanel
from schedtop.console.replay.timeline import clock
from schedtop.console.widgets.timeline import GPU, HOST, DrawnRun, Lane, Timeline, lanes

if TYPE_CHECKING:
    from schedtop.console.drawing.line import Line
    from schedtop.console.past.ladder import Grid
    from schedtop.console.replay.rerun.overlay import Overlay
    from schedtop.console.view import View
    from schedtop.console.widgets.panel import Pieces


class RunsTimeline(Timeline):
    """Both runs on the recording's clock, all of them at first."""

    def __init__(self, view: View, overlay: Overlay) -> None:
        super().__init__(view)
        self.overlay = overlay
        self.show_all()

    @property
    def runs(self) -> tuple[DrawnRun, ...]:
        overlay = self.overlay
        assert overlay.answer is not None
        base = "recorded" if overlay.over_recorded else "as recorded"
        return DrawnRun(base, overlay.base), DrawnRun("re-run", overlay.answer.variant)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(lane for lane in lanes(self.view) if lane not in (HOST, GPU))

    def extent(self) -> tuple[float, float]:
        return self.overlay.extent

    def put(self, at_s: float) -> None:
        begin_s, end_s = self.extent()
        self.view.cursor_s = min(max(at_s, begin_s), end_s)

    def letters(self, grid: Grid) -> dict[int, str]:
        parting_s = self.overlay.parting_s
        return {} if parting_s is None else {grid.column(parting_s): "D"}


class RunsTimelinePanel(RunsPanel):
    TITLE: ClassVar[str] = "Both runs"
    HELP: ClassVar[str] = """\
The lanes of the Timeline [1], with the same keys, each twice and to one scale: above, the recorded run; below, the
re-run under the changed knobs, on the recording's clock. Left and Right move the cursor through both; at the right
stand the values of its column. + and - choose 10 s, 1 min, 5 min, 1 h or all, z all.
Under the lanes is what happened in each run: A a request was admitted, V one was preempted, K a knob was changed.
D marks the first step that is not the same in both: d goes there, and Enter shows the chosen moment in the replay.
What was recorded on a real device is simulated with step times fitted to it. Only two simulated runs can be compared
fairly: above is then the recording run again as it was, and o puts the recorded run itself there."""

    def __init__(self, view: View, overlay: Overlay, *, id: str) -> None:
        super().__init__(view, overlay, id=id)
        self.timeline = RunsTimeline(view, overlay)

    def headline(self) -> Pieces:
        overlay = self.overlay
        if overlay.outcome is None:
            return []
        end_s = self.timeline.extent()[1]
        at_s = self.view.cursor_s
        at = [] if at_s is None else [(f"at {clock(at_s, end_s)}", "text")]  # first: it is the one that moves
        runs = [(overlay.base_name, "muted"), (overlay.variant_name, "accent")]
        return [*overlay.page_note, *at, *runs, *self.timeline.headline(self.size.width)[:2]]

    def body(self, width: int, height: int) -> list[Line]:
        return [] if self.overlay.outcome is None else self.timeline.lines(width, height)

    def click_line(self, y: int, x: int) -> None:
        if self.overlay.outcome is not None:
            self.timeline.point(x, self.size.width)
