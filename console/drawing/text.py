"""Text for the screen: outside text made harmless, figures in steady units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from schedtop.engine.contract.sanitize import one_line

NONE = "-"
UNKNOWN = "n/a"

_SECONDS_FROM_S = 0.9995
_SCALES = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))


def clean(value: object, limit: int = 200) -> str:
    """`value` as one harmless line.

    Everything that comes from a client, a file or another process passes here before it is drawn; nothing on the
    screen is parsed as markup.
    """
    return one_line(value, limit)


def fit(text: str, width: int, align: str = "<") -> str:
    """`text` in exactly `width` cells; a cut is marked by a closing `~`."""
    if width <= 0:
        return ""
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "~"
    pad = " " * (width - length)
    return pad + text if align == ">" else text + pad


MOST_ID = 512


def identity(id: str, width: int = MOST_ID) -> str:
    """A request's id, cleaned, in at most `width` cells: cut in the middle, as ids differ at their ends."""
    if len(id) <= width and id.isascii() and id.isprintable() and " " not in id:
        return id  # as nearly all are, and asked for with every event
    whole = clean(id, MOST_ID)
    if cell_len(whole) <= width:
        return whole
    tail = (width - 1) * 2 // 3
    return fit(whole, width - tail) + whole[len(whole) - tail :] if whole.isascii() else fit(whole, width)


def count(number: float | None) -> str:
    """A count in at most five cells: 21, 9999, 12.3k, 123k, 1.2M."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    if abs(number) < 10_000:
        return f"{number:.0f}"
    for scale, suffix in _SCALES:
        scaled = number / scale
        if abs(scaled) < 999.5:
            return f"{scaled:.1f}{suffix}" if abs(scaled) < 99.95 else f"{scaled:.0f}{suffix}"
    return f"{number:.0e}"


def rate(number: float | None) -> str:
    """A rate with one decimal while it is small: 0.4, 21.4, 312, 12.3k."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{number:.1f}" if abs(number) < 99.95 else count(number)


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds, three significant digits: 0.42, 4.2, 46.7, 182; from a second on 9.40s, 63.6s, 115s."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds >= _SECONDS_FROM_S:
        return f"{_three(seconds)}s"
    value = seconds * 1000
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.995 or value == 0 else f"{value:.2f}"


def ms_unit(seconds: float | None) -> str:
    """As `ms`, with its unit: 46.7 ms, 182 ms, 115 s."""
    figure = ms(seconds)
    if figure == NONE:
        return figure
    return f"{figure[:-1]} s" if figure.endswith("s") else f"{figure} ms"


def _three(value: float) -> str:
    """Three significant digits."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def times(seconds: Sequence[float | None]) -> tuple[list[str], str]:
    """Times beside each other, and the one unit that fits the longest: ms, or s from a second on."""
    if max((value for value in seconds if value is not None), default=0.0) < _SECONDS_FROM_S:
        return [ms(value) for value in seconds], "ms"
    return [NONE if value is None else _three(value) for value in seconds], "s"


def duration(seconds: float | None) -> str:
    """A span for people: 0.4s, 12.3s, 4m05s, 3h12m, 5d03h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def share(part: float, whole: float) -> str:
    """`part` of `whole` in percent, `n/a` of nothing. Never rounds to 0 or 100 what is not."""
    if not whole:
        return UNKNOWN
    percent = 100 * part / whole
    if 0 < percent < 0.5:
        return "<1%"
    if 99.5 <= percent < 100:
        return ">99%"
    return f"{percent:.0f}%"


def value(knob_value: object) -> str:
    """A knob's value as typed: None is `auto`, booleans are on and off."""
    if knob_value is None:
        return "auto"
    if isinstance(knob_value, bool):
        return "on" if knob_value else "off"
    if isinstance(knob_value, float):
        return f"{knob_value:g}"
    return clean(knob_value, 40)


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
