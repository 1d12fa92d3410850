"""Pace: rates that change, bunches, and independence from how often the source is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.paced import Ask, PacedSource, Tempo, Wave
from schedtop.engine.workload.source import RequestSource

Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]


def steady(tempo: Tempo, number: int = 100) -> PacedSource:
    """One request in every second of own time."""
    asks: Iterator[Ask] = (Ask(float(i), i, f"r{i}", 1, 1) for i in range(number))
    return PacedSource(asks, tempo, lambda ask, at: Request(ask.id, np.zeros(1, np.int32), 1, at), {})


def arrivals(requests: list[Request]) -> list[float]:
    return [request.arrival_s for request in requests]


def test_a_change_of_rate_bends_time_from_that_moment() -> None:
    source = steady(Tempo(1.0, 1.0))
    assert arrivals(source.take(2.5, 0)) == [0, 1, 2]
    source.set_rate(10.0, 2.5)
    assert arrivals(source.take(2.8, 0)) == pytest.approx([2.55, 2.65, 2.75])
    source.set_rate(None, 2.8)
    assert source.next_arrival_s() == pytest.approx(3.3)


def test_what_had_arrived_before_a_change_keeps_its_time() -> None:
    source = steady(Tempo(1.0, 1.0))
    source.set_rate(100.0, 3.0)
    assert source.next_arrival_s() == 0
    assert arrivals(source.take(3.0, 0)) == [0, 1, 2, 3]


def test_rate_zero_stops_and_another_rate_goes_on() -> None:
    source = steady(Tempo(1.0, 1.0))
    source.take(0.5, 0)
    source.set_rate(0.0, 0.5)
    assert source.next_arrival_s() == float("inf")
    assert source.take(1e6, 0) == []
    source.set_rate(2.0, 1e6)
    assert source.next_arrival_s() == 1e6 + 0.25


def test_the_end_is_none_whatever_the_rate() -> None:
    source = steady(Tempo(1.0, 1.0), 2)
    assert len(source.take(5.0, 0)) == 2
    source.set_rate(0.0, 5.0)
    assert source.next_arrival_s() is None
    assert source.take(9.0, 0) == []


def test_a_source_without_a_rate_ignores_one() -> None:
    source = steady(Tempo(None, 1.0))
    source.set_rate(50.0, 0.0)
    assert arrivals(source.take(2.0, 0)) == [0, 1, 2]


changes = st.lists(st.tuples(st.floats(0.01, 5), st.sampled_from([None, 0.0, 0.5, 3.0, 40.0])), max_size=6)


@given(changes, st.lists(st.floats(0.001, 3.0), min_size=1, max_size=30), st.booleans())
def test_how_often_it_is_asked_changes_nothing(
    changes: list[tuple[float, float | None]], gaps: list[float], wavy: bool
) -> None:
    """The same changes at the same moments give the same arrivals, taken in any portions."""
    wave = Wave(1.0, 4.0) if wavy else None
    coarse, fine = steady(Tempo(1.0, 0.7, None, wave)), steady(Tempo(1.0, 0.7, None, wave))
    taken: list[Request] = []
    clock_s, at = 0.0, 0
    for pause_s, rate in changes:
        until_s = clock_s + pause_s
        while clock_s + gaps[at % len(gaps)] < until_s:
            clock_s += gaps[at % len(gaps)]
            at += 1
            taken += fine.take(clock_s, at)
        clock_s = until_s
        for source in (coarse, fine):
            source.set_rate(rate, clock_s)
    taken += fine.take(1e9, 0)
    whole = coarse.take(1e9, 0)
    assert arrivals(taken) == arrivals(whole)
    assert arrivals(whole) == sorted(arrivals(whole))
    assert [request.id for request in whole] == [f"r{i}" for i in range(len(whole))]


@given(st.floats(0, 1e5), st.floats(0.1, 9.9))
def test_a_wave_and_its_inverse(even_s: float, on_s: float) -> None:
    wave = Wave(on_s, 10.0)
    clock_s = wave.bunch(even_s)
    assert clock_s % 10.0 <= on_s + 1e-9
    assert wave.even(clock_s) == pytest.approx(even_s, abs=1e-6)


def test_bursts_come_in_their_part_of_the_period_at_the_mean_rate(opened: Open, drain: Drain) -> None:
    requests = drain(opened("burst", rate=30.0), 3000)
    times = np.array(arrivals(requests))
    assert (times % 20 <= 4 + 1e-6).all()
    assert 3000 / times[-1] == pytest.approx(30, rel=0.1)


def test_a_rate_changed_between_bursts_waits_for_the_next(opened: Open, drain: Drain) -> None:
    source = opened("burst")
    source.take(10.0, 0)
    source.set_rate(1000.0, 10.0)
    assert source.next_arrival_s() == pytest.approx(20, abs=0.1)
