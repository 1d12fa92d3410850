"""The known name most likely meant by a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.5
"""Below this similarity a guess would mislead."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The entry of `known` most similar to `name`, ignoring case and dashes; None if none is."""
    spelt = {other.lower().replace("-", "_"): other for other in known}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), spelt, n=1, cutoff=CUTOFF)
    return spelt[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean X? `, to put before the known names; empty if nothing is close."""
    near = nearest(name, known)
    return "" if near is None else f"did you mean {near}? "
