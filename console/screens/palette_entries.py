"""What the command palette finds: actions, and by their words findings, requests and steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from schedtop.console.actions import SCOPES, Action, key_name
from schedtop.console.drawing import text
from schedtop.console.screens.command_palette import PaletteEntry

if TYPE_CHECKING:
    from schedtop.console.screens.base import ConsoleScreen

MOST_REQUESTS = 30
_STEP = re.compile(r"(?:step|#)?\s*(\d{1,15})")


def entries(screen: ConsoleScreen, words: str) -> list[PaletteEntry]:
    """What holds all the words; of equal kinds what begins with them first. Without words: the actions."""
    wanted = words.lower().split()
    with screen.view.history.lock:
        found = _actions(screen, wanted)
        if wanted:
            found += [*_findings(screen, wanted), *_requests(screen, wanted), *_step(screen, words)]
    return sorted(found, key=lambda entry: not entry.title.lower().startswith(words.lower().strip()))


def _actions(screen: ConsoleScreen, wanted: list[str]) -> list[PaletteEntry]:
    return [
        PaletteEntry(
            action.title + ("" if action.scope == "global" else f" ({SCOPES[action.scope]})"),
            _keys(action),
            partial(screen.action_act, action.id),
            screen.why_not(action.id) or "",
        )
        for action in screen.registry.actions
        if _holds(wanted, action.title, action.help, _keys(action))
    ]


def _findings(screen: ConsoleScreen, wanted: list[str]) -> Iterator[PaletteEntry]:
    for entry in screen.view.findings:
        finding = entry.shown
        if _holds(wanted, finding.id, finding.title, "finding"):
            run = partial(screen.console.open_explain, entry.finding.id)
            yield PaletteEntry(finding.title, "finding" if entry.active else "earlier", run)


def _requests(screen: ConsoleScreen, wanted: list[str]) -> Iterator[PaletteEntry]:
    """Live requests, then those that ended, the newest first."""
    history = screen.view.history
    live = ((number, tracked.arrival.id, "request") for number, tracked in history.live.requests.items())
    ended = ((number, history.finished[number][0].id, "ended") for number in reversed(list(history.finished)))
    matching = ((number, id, note) for number, id, note in chain(live, ended) if _holds(wanted, id))
    for number, id, note in islice(matching, MOST_REQUESTS):
        yield PaletteEntry(text.identity(id, 40), note, partial(screen.console.show_request, number))


def _step(screen: ConsoleScreen, words: str) -> Iterator[PaletteEntry]:
    """The step of that number, while it is kept."""
    asked, records = _STEP.fullmatch(words.lower().strip()), screen.view.history.records
    step = int(asked[1]) if asked is not None else -1
    index = bisect_left(records, step, key=lambda record: record.step)
    if index < len(records) and records[index].step == step:
        yield PaletteEntry(f"Step {step}", "in all panels", partial(_show_step, screen, records[index].seq))


def _show_step(screen: ConsoleScreen, seq: int) -> None:
    if screen.view.pin(seq):
        screen.console.back_to_live("panel_1")
    else:
        screen.say(screen.view.forgotten, "warn")


def _keys(action: Action) -> str:
    return " ".join(key_name(key) for key in action.keys)


def _holds(wanted: list[str], *words: str) -> bool:
    hay = " ".join(words).lower()
    return all(word in hay for word in wanted)
