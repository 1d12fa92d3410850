"""A plain scheduler: one object per request, lists and dicts, the rules one after the other.

The yardstick for the real one. It is slow, decides nothing cleverly, and reads top to bottom.
"""

from __future__ import annotations

from typing import Any

import msgspec
from schedtop.engine.golden.case import Case, CaseStep

from tests.engine.scheduler.plain.run import PlainRun

__all__ = ["PlainRun", "plain_run", "plainly"]


def plain_run(case: Case) -> PlainRun:
    """A plain run of a case that the real scheduler reads too."""
    return PlainRun(msgspec.json.decode(msgspec.json.encode(case)))


def plainly(step: CaseStep, like: dict[str, Any]) -> dict[str, Any]:
    """A step as a plain run tells it: with the fields of `like` that its case can use."""
    reported: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(step))
    return {name: reported[name] for name in like}
