"""One function sums up a cohort: it must say what its definition says, with and without open members."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.latencies.cohort import SHARES, Bounded, cohort

VALUES = st.lists(st.integers(0, 40).map(lambda tick: tick / 8), max_size=60)


def brute(known: list[float], unended: list[float], share: float) -> Bounded | None:
    """The definition, member by member."""
    members = sorted([(value, False) for value in known] + [(value, True) for value in unended])
    if not members:
        return None
    place = share * (len(members) - 1)
    low, high = math.floor(place), math.ceil(place)

    def between(values: list[float]) -> float:
        if low == high:
            return values[low]
        return values[low] + (values[high] - values[low]) * (place - low)

    first_open = next((rank for rank, (_, is_open) in enumerate(members) if is_open), len(members))
    never = sorted([*known, *[math.inf] * len(unended)])
    most = math.inf if never[high] == math.inf else between(never)
    return Bounded(between([value for value, _ in members]), most, high >= first_open)


@given(VALUES, VALUES, st.sampled_from([*SHARES.values(), 0.0, 0.25, 1.0]))
def test_a_quantile_is_what_its_definition_says(known: list[float], unended: list[float], share: float) -> None:
    found, wanted = cohort(known, unended).quantile(share), brute(known, unended, share)
    if found is None or wanted is None:
        assert found is wanted
        return
    assert found.is_bound is wanted.is_bound
    assert (found.least, found.most) == pytest.approx((wanted.least, wanted.most))


@given(VALUES, VALUES, VALUES, st.sampled_from(list(SHARES.values())))
def test_a_bound_never_says_more_than_the_truth(
    known: list[float], unended: list[float], more: list[float], share: float
) -> None:
    """Whatever the open ones come to in the end, the figure lies within its bounds; what is not a bound stays."""
    grown = [value + extra for value, extra in zip(unended, [*more, *[0.0] * len(unended)], strict=False)]
    now, later = cohort(known, unended).quantile(share), cohort([*known, *grown]).quantile(share)
    if now is None or later is None:
        assert now is later
        return
    assert now.least <= later.least + 1e-9 and later.least <= now.most + 1e-9
    assert now.is_bound or later.least == pytest.approx(now.least)


@given(VALUES, VALUES, st.integers(0, 40).map(lambda tick: tick / 8))
def test_who_is_open_within_the_bound_is_not_judged(known: list[float], unended: list[float], bound: float) -> None:
    within, past = cohort(known, unended).judged(bound)
    assert within == sum(value <= bound for value in known)
    assert past == sum(value > bound for value in [*known, *unended])


@given(st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(0, 5)), max_size=20), VALUES)
def test_counts_stand_for_as_many_members(pairs: list[tuple[float, int]], unended: list[float]) -> None:
    values, counts = [value for value, _ in pairs], [count for _, count in pairs]
    each = [value for value, count in pairs for _ in range(count)]
    assert cohort(values, unended, counts).document() == cohort(each, unended).document()


def test_nobody_has_no_figure() -> None:
    assert cohort([]).document() == {
        **dict.fromkeys(("mean", *SHARES)),
        "n": 0,
        "open": 0,
        "at_most": {},
        "lower_bound": [],
    }


def test_survivors_do_not_speak_for_those_who_wait() -> None:
    document = cohort([0.016] * 93, [25.5 - 0.05 * place for place in range(310)]).document()
    assert document["n"] == 93 and document["open"] == 310
    assert document["p50"] > 5.0 and document["p99"] > 25.0
    assert document["lower_bound"] == ["mean", *SHARES]


def test_nan_is_no_member() -> None:
    assert cohort(np.array([1.0, np.nan]), [np.nan]).document()["n"] == 1
