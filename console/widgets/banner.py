"""The line under the header: what holds the engine back, or a state that colours everything below it."""

from __future__ import annotations

import time

from schedtop.console.drawing import text
from schedtop.console.drawing.line import Line
from schedtop.console.drawing.styles import BOLD
from schedtop.console.status import sentence
from schedtop.console.view import ReplayStatus, View
from schedtop.console.widgets.panel import Drawn

_NEW_S = 30.0
"""How long another engine is mentioned."""


def banner(view: View) -> tuple[str, str] | None:
    """The banner's words and their role; None while everything is in order."""
    history, link = view.present, view.link
    if view.replay is not None:
        return _of_replay(view.replay)
    step = history.live.step
    retry = ""
    if link.retry_at_s is not None:
        retry = f" Retrying in {text.duration(max(0.0, link.retry_at_s - view.now()))}."
    if link.state == "ended":
        where = f"at step {step}" if history.records else "before its first step"
        return (
            f"The engine stopped {where}: {link.cause or 'no cause given'}. History stays; knobs are disabled.{retry}",
            "breach",
        )
    if link.state == "lost":
        at = f" at {text.clean(view.options.address, 60)}" if view.options.address else ""
        return (
            f"No engine{at} for {text.duration(view.now() - link.since_s)}: {link.cause}.{retry}",
            "breach",
        )
    if not history.synced:
        stage = history.stage
        if stage is None:
            return f"Waiting for the engine: {text.duration(view.now() - link.since_s)}. q quits.", "warn"
        since_s = stage.elapsed_s + (view.age_s or 0.0)
        return f"Loading: {text.clean(stage.name)}, {text.duration(since_s)}. q quits.", "warn"
    if history.another and history.header is not None and view.now() - link.since_s < _NEW_S:
        since = time.strftime("%H:%M:%S", time.localtime(history.header.started_at))
        return (
            f"A new engine (started at {since}) answers here; the previous run stays on the timeline.",
            "warn",
        )
    if view.trial is not None:
        changed = ", ".join(f"{name} {text.value(value)}" for name, value in view.trial.values.items())
        left_s = view.trial.left_s(view.now())
        keys = "" if view.options.read_only else " unless confirmed (c in [6]; r reverts now)"
        return f"{view.guide}On trial: {changed}. Reverts in {left_s:.0f} s{keys}.", "warn"
    return (view.guide, "accent") if view.guide else None


def _of_replay(status: ReplayStatus) -> tuple[str, str] | None:
    if status.truncated is None or status.state != "ended":
        return None
    return f"The recording is incomplete: {text.clean(status.truncated)}.", "breach"


class BannerBar(Drawn):
    def lines(self, width: int, height: int) -> list[Line]:
        palette = self.view.palette
        found = banner(self.view)
        if found is not None:
            words, role = found
            style = palette.on(role, "surface") + BOLD
            return [Line().add(f" {words}", style).pad(width, style)]
        words, role = sentence(self.view.history, self.view.moment, self.view.findings_there)
        return [Line().add(f" {words}", palette[role])]
