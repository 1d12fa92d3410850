"""Percentiles are those of all values, in whatever portions they came."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.latencies import percentiles
from schedtop.engine.contract.latencies.percentiles import Percentiles

gaps = st.floats(0, 1e3, width=32) | st.just(float("nan")) | st.sampled_from([0.25, 0.5])


@given(st.lists(st.lists(gaps, max_size=20), max_size=8), st.floats(0, 1), st.integers(1, 30))
def test_equal_to_numpy_whatever_the_portions(portions: list[list[float]], share: float, compact_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(percentiles, "COMPACT_AT", compact_at)
        collected = Percentiles("f")
        for portion in portions:
            collected.add_bytes(np.array(portion, dtype=np.float32).tobytes())
    values = np.array([value for portion in portions for value in portion], dtype=np.float32)
    values = values[~np.isnan(values)].astype(np.float64)
    assert collected.count == len(values)
    if len(values):
        assert collected.percentile(share) == pytest.approx(np.percentile(values, 100 * share), rel=1e-9, abs=1e-12)
    else:
        assert collected.percentile(share) is None


def test_values_go_on_after_a_look() -> None:
    collected = Percentiles()
    for value in (3.0, 1.0):
        collected.add(value)
    assert collected.percentile(0.5) == 2.0
    collected.add(7.0)
    assert (collected.percentile(0.5), collected.count) == (3.0, 3)


def test_many_equal_values_take_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(percentiles, "COMPACT_AT", 1000)
    collected = Percentiles("f")
    raw = np.full(500, 0.02, dtype=np.float32).tobytes()
    for _ in range(100):
        collected.add_bytes(raw)
    assert collected.count == 50_000
    assert len(collected._values) == 1
    assert len(collected._new) == 0
