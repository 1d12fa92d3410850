"""What the panels draw from: which moment is shown, and how."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from schedtop.console.drawing import text
from schedtop.console.drawing.glyphs import Glyphs
from schedtop.console.drawing.styles import Palette
from schedtop.console.explain.log import LogEntry
from schedtop.console.knobs.trial import Pending
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.past import Moment, Past

WINDOWS_S = (10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
LAG_S = 0.1
"""A terminal that takes longer to show a frame makes all that is seen older."""
STEPS_PER_COLUMN = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The state of the console's connection. `since_s` and `retry_at_s` are on the console's clock."""

    state: str = "connecting"
    cause: str = ""
    since_s: float = 0.0
    retry_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The position in a recording. `state` is playing, paused or ended; times are the recording's own clock.

    `truncated` says what is missing of a file that is not whole.
    """

    state: str
    speed: float
    last_step: int
    clock_s: float
    start_s: float
    end_s: float
    truncated: str | None = None


@dataclass
class View:
    """Shared by a screen's panels. Read and changed by the screen's thread only, with the history locked.

    `moment` is what every panel shows: live, or pinned to one step (`pinned` is its seq). `history` is the run that has
    it: the `present` one, or the one before a restart. `cursor_s` is where the timeline's cursor stands, None at its
    end. `edge` is the newest step of the batch history, `edge_s` the end of the timeline; both stand still while the
    view is pinned. `badge` describes findings in the header; `findings` are those of the last look. `guide` says what
    to do next.

    While records rain in, each panel whose figures nobody reads ten times a second is drawn in one of `every` frames,
    which are counted in `frame`. `keyed` frames, which a key caused between two others, leave out all panels but those
    it was meant for, and of these all but the rule if it `turned` the focus and did nothing else.

    `replay` is there if a recording is shown, not an engine. `recording` names the file that is being written.
    """

    history: Past
    options: ConsoleOptions
    palette: Palette
    glyphs: Glyphs
    now: Callable[[], float] = time.monotonic
    link: LinkStatus = field(default_factory=LinkStatus)
    window_s: float = 60.0
    steps_per_column: int = 1
    pinned: int | None = None
    cursor_s: float | None = None
    edge: int = -1
    edge_s: float = 0.0
    received_at_s: float | None = None
    behind_s: float = 0.0
    lag_s: float = 0.0
    badge: str = ""
    guide: str = ""
    findings: list[LogEntry] = field(default_factory=list)
    replay: ReplayStatus | None = None
    recording: str = ""
    trial: Pending | None = None
    frame: int = 0
    every: int = 1
    keyed: bool = False
    turned: bool = False
    present: Past = field(init=False)
    _moment: Moment | None = None

    def __post_init__(self) -> None:
        self.present = self.history

    @property
    def moment(self) -> Moment:
        if self._moment is None:
            self.look()
        assert self._moment is not None
        return self._moment

    def look(self) -> None:
        """Take up the newest moment, unless the view is pinned."""
        if self.pinned is None:
            self._moment = self.history.now()
            self.edge, self.edge_s = self._moment.seq, self.present.live.clock_s

    def pin(self, seq: int) -> bool:
        """Show the step `seq` and stay there; False if it is not known any more."""
        run = self.present.holding(seq)
        moment = run.at(seq)
        if moment is None:
            return False
        if self.pinned is None or run is not self.history:
            self.edge, self.edge_s = run.live.seq, self.present.live.clock_s
        self.history, self.pinned, self._moment = run, seq, moment
        self.edge = max(self.edge, seq)
        return True

    def release(self) -> None:
        """Go back to the present."""
        self.history, self.pinned, self.cursor_s = self.present, None, None
        self.look()

    def neighbour(self, offset: int) -> int | None:
        """The seq of the step `offset` steps from the shown one, also over a restart; None where none is."""
        seq = self.history.neighbour(self.moment.seq, offset)
        if seq is not None:
            return seq
        across = self.present.before if offset < 0 and self.history is self.present else None
        if across is not None and across.records:
            return across.records[-1].seq
        if offset > 0 and self.history is not self.present and self.present.records:
            return self.present.records[0].seq
        return None

    @property
    def findings_there(self) -> list[LogEntry]:
        """Findings about the shown moment: of the run before there are none, of a past step those that hold since."""
        if self.history is not self.present:
            return []
        if self.pinned is None:
            return self.findings
        held = (entry for entry in self.findings if entry.active)
        return [entry for entry in held if entry.episodes[-1].from_s <= self.moment.clock_s]

    @property
    def axis_s(self) -> float:
        """Where the shown moment is on the timeline."""
        return self.moment.clock_s - self.history.earlier_s

    @property
    def is_a_server(self) -> bool:
        """The engine is in a vLLM server: a pause holds admissions only, and there are no single steps."""
        header = self.present.header
        return header is not None and header.source == "vllm"

    @property
    def forgotten(self) -> str:
        """Why a step cannot be shown, and which ones can."""
        records = self.present.records
        kept = f"; the last {text.plural(len(records), 'record')} are, from step {records[0].step} on"
        return "that step is no longer kept" + (kept if records else "")

    @property
    def behind(self) -> int:
        """Steps that came since the view was pinned."""
        return self.history.live.step - self.moment.state.step

    @property
    def stale(self) -> bool:
        """True when nothing new will come: the engine stopped or the link is lost."""
        return self.link.state in ("lost", "ended")

    @property
    def age_s(self) -> float | None:
        """How old what the terminal shows is: the time since the last message of the engine, more while the last
        minutes are still being read; None before the first."""
        if self.silent_s is None:
            return None
        return self.silent_s + self.behind_s + (self.lag_s if self.lag_s > LAG_S else 0.0)

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last message of the engine; None before the first."""
        return None if self.received_at_s is None else max(0.0, self.now() - self.received_at_s)
