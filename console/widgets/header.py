"""The first line: whose engine this is, how it does, and how fresh the data is."""

from __future__ import annotations

import time
from typing import ClassVar

from schedtop.console.drawing import text
from schedtop.console.drawing.layout import COMPACT
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD_REVERSED
from schedtop.console.view import ReplayStatus, View
from schedtop.console.widgets.panel import Drawn
from schedtop.engine.contract.workload_notes import notices

_OLD_S = 2.0
_WIDE = 120
"""Cells from which on device and step come before the rates and the age; the panels describe the step."""


class HeaderBar(Drawn):
    """Product, mode, findings, read-only, model, device, step, age of data, rates; the engine's clock at the right."""

    HELP: ClassVar[str] = """\
Fields that do not fit are dropped, findings and read-only last, and … says so. Below 80 columns running and waiting
requests stand in the place of the clock.
step/s, out and in are per second of the engine's clock, over the seconds that stand before them; age is that of what is
shown: the time since the engine's last message, more while its last minutes are still being read. REC: a recording is
being written (W). A simulated engine's clock (sim) starts at 0."""

    def __init__(self, view: View, *, id: str) -> None:
        super().__init__(view, id=id)
        self._newest = (-1, 0.0)

    @property
    def _still_s(self) -> float:
        """How long the newest step has been the newest; what is said meanwhile is not a step."""
        step, now_s = self.view.history.live.step, self.view.now()
        if self._newest[0] != step:
            self._newest = (step, now_s)
        return now_s - self._newest[1]

    def lines(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        under = palette.on("text", "surface")
        line = Line().add(" schedtop ", palette.on("accent", "surface"))
        word, role = self.mode()
        line.add(f" {word} ", palette.on(role, "surface") + BOLD_REVERSED).add(" ", under)
        clock = self.clock() if width >= COMPACT[0] else ""
        room = width - len(clock) - 3
        left_out = False
        for label, value, value_role in self.fields(width):
            length = len(label) + len(value) + (1 if label else 0) + 2
            if line.length + length > room:
                left_out = True
                continue
            line.add(" ", under)
            if label:
                line.add(f"{label} ", palette.on("muted", "surface"))
            line.add(value, palette.on(value_role, "surface")).add(" ", under)
        if left_out:
            line.add(self.view.glyphs.short, palette.on("muted", "surface"))
        line.right(width, Line().add(f"{clock} ", palette.on("text", "surface")), under)
        return [line.pad(width, under)]

    def mode(self) -> tuple[str, str]:
        """The badge: what the screen shows, and the role that colours it."""
        view = self.view
        if view.replay is not None:
            return _replay_mode(view.replay)
        if view.link.state == "ended":
            return "STOPPED", "breach"
        if view.link.state == "lost":
            return "DISCONNECTED", "breach"
        if view.history is not view.present:
            return "RUN BEFORE", "warn"
        if view.pinned is not None:
            return f"PAUSED +{text.plural(view.behind, 'step')}" if view.behind >= 0 else "PAUSED", "warn"
        if not view.history.synced:
            return "LOADING", "warn"
        if view.moment.state.paused:
            return ("ADMISSIONS PAUSED" if view.is_a_server else "ENGINE PAUSED"), "warn"
        return ("IDLE" if self.idle else "LIVE"), "ok"

    @property
    def idle(self) -> bool:
        """The present is shown, there are no requests, and no step came for a while: nothing is late."""
        view = self.view
        state = view.moment.state
        if view.replay is not None or view.stale or view.pinned is not None or not view.history.synced:
            return False
        return not state.paused and not state.requests and self._still_s > _OLD_S

    @property
    def paused(self) -> bool:
        """The engine waits on purpose: nothing is late, and there are no rates."""
        view = self.view
        return view.replay is None and not view.stale and view.history.synced and view.history.live.paused

    def fields(self, width: int) -> list[tuple[str, str, str]]:
        """Label, value and role of the value, the most important first."""
        view, history = self.view, self.view.history
        header, state = history.header, view.moment.state
        found: list[tuple[str, str, str]] = []
        if view.replay is not None:
            found.append(("step", f"{state.step}/{view.replay.last_step}", "text"))
            found.append(("at", _position(view.replay), "text"))
        age_s = view.age_s
        old = age_s is not None and age_s > _OLD_S and not (self.idle or self.paused)
        age = [("age", text.duration(age_s), "breach" if old else "text")] if view.replay is None else []
        if old:
            found += age
        if self.paused and view.pinned is not None:
            found.append(("", "engine paused", "warn"))
        if view.badge and view.history is view.present:
            found.append(("", view.badge, "breach"))
        if view.recording:
            found.append(("", "REC", "breach"))
        if view.options.read_only:
            found.append(("", "read-only", "warn"))
        if width < COMPACT[0]:
            found.append(("", f"{state.num_running} run {state.num_waiting} wait", "text"))
        details: list[tuple[str, str, str]] = []
        if header is not None:
            if noticed := len(notices(header.workload)):
                found.append(("", text.plural(noticed, "trace note"), "warn"))
            found.append(("", text.clean(header.model, 28), "text"))
            details.append(("on", text.clean(header.device, 28), "text"))
        if view.replay is None:
            details.append(("step", str(state.step), "text"))
        if width >= _WIDE:
            found += details
        still = self.idle or (self.paused and view.pinned is None)
        rates = None if still else history.rates(view.moment)
        if rates is not None:
            span = text.duration(rates.span_s).replace(".0s", "s")
            found.append((f"over {span}", f"{text.rate(rates.steps)} step/s", "text"))
        if not old:
            found += age
        if rates is not None:
            found.append(("out", f"{text.rate(rates.output_tokens)} tok/s", "text"))
            found.append(("in", f"{text.rate(rates.prompt_tokens)} tok/s", "text"))
        return found if width >= _WIDE else found + details[::-1]

    def clock(self) -> str:
        """Time of day of the shown moment; seconds since the start on a simulated clock."""
        header, clock_s = self.view.history.header, self.view.moment.clock_s
        if header is None:
            return ""
        if header.simulated_clock:
            hours, rest = divmod(int(clock_s), 3600)
            return f"sim {hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
        return time.strftime("%H:%M:%S", time.localtime(header.started_at + clock_s))


def _replay_mode(status: ReplayStatus) -> tuple[str, str]:
    words = {"playing": "REPLAY", "paused": "REPLAY PAUSED", "ended": "REPLAY ENDED"}[status.state]
    return f"{words} {status.speed:g}x", "ok" if status.state == "playing" else "warn"


def _position(status: ReplayStatus) -> str:
    return f"{status.clock_s - status.start_s:.1f}/{status.end_s - status.start_s:.1f} s"
