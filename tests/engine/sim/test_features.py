"""Step features, counted pair by pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.sim.features import StepFeatures, step_features

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=12)


def counted(rows: list[tuple[int, int]]) -> StepFeatures:
    """The same features by counting what each position attends to."""
    scheduled = [(n, c) for n, c in rows if n]
    pairs = sum(c + i + 1 for n, c in scheduled if n > 1 for i in range(n))
    return StepFeatures(sum(n for n, _ in scheduled), pairs, sum(n + c for n, c in scheduled), len(scheduled))


@given(rows=ROWS)
def test_features_are_sums_over_scheduled_rows(rows: list[tuple[int, int]]) -> None:
    tokens = np.array([n for n, _ in rows], dtype=np.int32)
    computed = np.array([c for _, c in rows], dtype=np.int32)
    assert step_features(tokens, computed) == counted(rows)


def test_long_contexts_do_not_overflow() -> None:
    rows = 4096
    tokens = np.full(rows, 8192, dtype=np.int32)
    computed = np.full(rows, 1_000_000, dtype=np.int32)
    features = step_features(tokens, computed)
    assert features.kv_tokens == rows * 1_008_192
    assert features.attention_pairs == rows * (8192 * 1_000_000 + 8192 * 8193 // 2)
