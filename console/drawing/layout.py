"""Where the panels of the Live screen go, by the size of the terminal. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

WIDE = (140, 40)
COMPACT = (80, 24)
STRIP = (60, 12)

TABS = ("requests", "queue", "knobs", "events")
"""Panels that share the lower pane where the screen is compact, in the order of the tabs."""

_RIGHT_SHARE = 0.347


class Place(NamedTuple):
    """Cells: left, top, width, height."""

    x: int
    y: int
    width: int
    height: int


Places = dict[str, Place]


def mode(width: int, height: int) -> str:
    """`wide`, `compact`, `strip`, or `small`: too small for anything."""
    for name, (least_width, least_height) in (("wide", WIDE), ("compact", COMPACT), ("strip", STRIP)):
        if width >= least_width and height >= least_height:
            return name
    return "small"


def arrange(
    width: int, height: int, tab: str, zoomed: str | None, banner: bool = False, timeline: bool = False
) -> Places:
    """A place for every widget that is to be seen.

    `tab` is shown in the lower pane of a compact screen; `banner` takes the line under the header, `timeline` the
    one over the footer.
    """
    kind = mode(width, height)
    if kind == "small":
        return {}
    bars = {"header": Place(0, 0, width, 1), "footer": Place(0, height - 1, width, 1)}
    if banner:
        bars["banner"] = Place(0, 1, width, 1)
    top = 1 + banner
    room = height - 1 - top - timeline
    if timeline:
        bars["timeline"] = Place(0, height - 2, width, 1)
    if zoomed is not None:
        return {**bars, zoomed: Place(0, top, width, room)}
    match kind:
        case "wide":
            return {**bars, **_wide(width, room, top)}
        case "compact":
            return {**bars, **_stack(0, top, width, _compact(room, tab))}
    kv = 3 if room >= 10 else 2
    return {**bars, **_stack(0, top, width, {"batch": room - kv - 3, "kv": kv, "latency": 3})}


def _wide(width: int, room: int, top: int) -> Places:
    """Two columns. What is more than 43 lines is shared out; what is less, timeline and events give."""
    right = round(width * _RIGHT_SHARE)
    left = width - right - 3
    extra = max(0, room - 43)
    short = max(0, 43 - room)
    batch = 19 + extra // 3 - short
    kv = 3
    latency = 11 + extra // 6 // 2 * 2
    queue = 7 + extra // 8
    knobs = min(16, 12 + extra // 8)
    places = {"divider": Place(left, top, 3, room)}
    places |= _stack(0, top, left, {"batch": batch, "kv": kv, "requests": room - batch - kv})
    heights = {"latency": latency, "queue": queue, "knobs": knobs, "events": room - latency - queue - knobs}
    return places | _stack(left + 3, top, right, heights)


def _compact(room: int, tab: str) -> dict[str, int]:
    extra = max(0, room - 21)
    batch = 8 + extra // 3
    kv = 3
    latency = 3 + (extra // 5 if extra >= 20 else 0)
    return {
        "batch": batch,
        "kv": kv,
        "latency": latency,
        "tabs": 1,
        tab: room - 2 - batch - kv - latency,
        "ticker": 1,
    }


def _stack(x: int, y: int, width: int, heights: dict[str, int]) -> Places:
    places = {}
    for name, height in heights.items():
        places[name] = Place(x, y, width, height)
        y += height
    return places
