"""Drafts by prompt look-up, against a slow search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.runner.drafting.drafter import LONGEST_MATCH, SHORTEST_MATCH, look_up


def slow_look_up(ids: list[int], count: int) -> list[int]:
    for size in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        ending = ids[-size:]
        for begin in range(len(ids) - size - 1, -1, -1):
            if len(ending) == size and ids[begin : begin + size] == ending:
                return ids[begin + size : begin + size + count]
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 8))
def test_equals_a_slow_search(ids: list[int], count: int) -> None:
    assert look_up(np.array(ids, dtype=np.int32), count).tolist() == slow_look_up(ids, count)[:count]


def test_continues_a_repetition() -> None:
    assert look_up(np.array([1, 2, 3, 4, 5, 1, 2, 3], dtype=np.int32), 4).tolist() == [4, 5, 1, 2]
