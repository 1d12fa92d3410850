"""What only a thorough run does: CI's, or a long one (the profiles of `conftest.py`)."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

THOROUGH = settings().max_examples >= 100


def pick(quick: T, thorough: T) -> T:
    """`quick` on a developer's machine, `thorough` in CI."""
    return thorough if THOROUGH else quick
