"""Two runs of the same requests: praise and blame only where nothing that is still open can change them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.latencies.cohort import Cohort, cohort
from schedtop.engine.whatif.compared_figures import BY_NAME
from schedtop.engine.whatif.verdict import CANNOT_TELL, verdict

P50 = BY_NAME["ttft_p50_s"]


def judge(old: Cohort, new: Cohort) -> str:
    documents: Any = tuple({"ttft_s": side.document(), "clock_s": 1.0} for side in (old, new))
    return verdict(P50, documents, ({"ttft_s": old}, {"ttft_s": new}))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (cohort([1.0] * 10), cohort([2.0] * 10), "worse"),
        (cohort([2.0] * 10), cohort([1.0] * 10), "better"),
        (cohort([2.0] * 10), cohort([2.0] * 10), "same"),
        (cohort([1.0] * 10), cohort([0.5] * 4, [0.6] * 6), CANNOT_TELL),
        (cohort([1.0] * 10), cohort([0.5] * 4, [3.0] * 6), "worse"),
        (cohort([1.0] * 10), cohort([0.5] * 9, [0.6]), "better"),
        (cohort([1.0] * 10), cohort([0.5] * 4), CANNOT_TELL),
    ],
)
def test_a_verdict_rests_on_what_is_known(old: Cohort, new: Cohort, said: str) -> None:
    assert judge(old, new) == said


TIMES = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=12)


@given(TIMES, TIMES, st.data())
def test_a_verdict_over_bounds_holds_in_the_end(old: list[float], new: list[float], data: st.DataObject) -> None:
    """Whatever the open ones come to: what was called better is not worse then, and the other way round."""
    size = min(len(old), len(new))
    num_open = data.draw(st.integers(1, size))
    known, still = new[num_open:size], new[:num_open]
    so_far = [value * data.draw(st.floats(0, 1)) for value in still]
    now = judge(cohort(old[:size]), cohort(known, so_far))
    later = judge(cohort(old[:size]), cohort([*known, *still]))
    assert now in (CANNOT_TELL, later)
