"""Keeps Python's cyclic garbage collector out of an engine's steps."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""New containers between collections; the default of 700 means several in every step."""


def calm_collector() -> None:
    """Leave start-up objects out of later collections, and collect rarely.

    Requests, plans and records hold no cycles: they are freed at once without the collector, which would walk every
    live request for nothing. Call it once an engine is built.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
