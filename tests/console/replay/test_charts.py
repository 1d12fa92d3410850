"""Figures beside the charts of a re-run."""

from __future__ import annotations

import math

import pytest
from schedtop.console.replay.rerun.charts import _figure


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (31_530.0, "ms", "31.5 s"),
        (9_999.4, "ms", "9999"),
        (120_400.0, "ms", "120 s"),
        (31_530.0, "", "31.5k"),
        (46.71, "ms", "46.7"),
        (math.nan, "ms", "-"),
    ],
)
def test_many_milliseconds_are_seconds(value: float, unit: str, words: str) -> None:
    assert _figure(value, unit) == words
