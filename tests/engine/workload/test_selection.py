"""Order, windows, limits, scaling and caps of a trace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload import replayed
from schedtop.engine.workload.order import ByArrival
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import Tally, TraceError, TraceRow

Replay = Callable[..., list[Request]]
Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def csv(*rows: tuple[float, int, int]) -> str:
    return HEADER + "".join(f"{t},{p},{o}\n" for t, p, o in rows)


STEADY = csv(*((100 + i, 10 * (i + 1), i + 1) for i in range(10)))


def arrivals(requests: list[Request]) -> list[float]:
    return [request.arrival_s for request in requests]


def prompts(requests: list[Request]) -> list[int]:
    return [request.num_prompt_tokens for request in requests]


def test_the_first_arrival_is_at_zero(replay: Replay) -> None:
    assert arrivals(replay(STEADY)) == list(range(10))


def test_unsorted_times_are_sorted_and_reported(opened: Open, drain: Drain, tmp_path: Path) -> None:
    path = tmp_path / "unsorted"
    path.write_text(csv((5, 1, 1), (3, 2, 1), (5, 3, 1), (3, 4, 1), (4, 5, 1)))
    source = opened(path)
    requests = drain(source)
    assert list(zip(arrivals(requests), prompts(requests), strict=True)) == [(0, 2), (0, 4), (1, 5), (2, 1), (2, 3)]
    assert source.description["inversions"] == 3


times = st.lists(st.integers(0, 30).map(float), max_size=40)


@given(times, st.integers(1, 50))
def test_a_bounded_window_sorts_stably_or_reports(stamps: list[float], window: int) -> None:
    """Whatever comes out is in order, equal times in file order, and every row is out or counted."""
    tally = Tally("t", skip_bad=True)
    rows = [TraceRow(line, time_s, 1, 1) for line, time_s in enumerate(stamps)]
    order = [(time_s, row.line) for time_s, _, row in ByArrival(iter(rows), tally, window)]
    assert order == sorted(order)
    assert len(order) + tally.bad.total() == len(stamps)
    if window >= len(stamps):
        assert order == sorted((time_s, line) for line, time_s in enumerate(stamps))


def test_a_row_beyond_the_window_is_a_bad_row() -> None:
    rows = [TraceRow(line, time_s, 1, 1) for line, time_s in enumerate([5.0, 6.0, 7.0, 1.0], 2)]
    with pytest.raises(TraceError, match="t:5: arrival too far out of order: sort the file by time"):
        list(ByArrival(iter(rows), Tally("t"), 2))


@pytest.mark.parametrize("window", [2, 3, 10, 50_000])
def test_reading_ahead_changes_no_request(replay: Replay, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(replayed, "WINDOW_ROWS", window)
    assert (arrivals(replay(STEADY)), prompts(replay(STEADY))) == ([*range(10)], [*range(10, 101, 10)])


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ({"limit": 3}, [1, 2, 3]),
        ({"start_s": 4.0}, [5, 6, 7, 8, 9, 10]),
        ({"end_s": 4.0}, [1, 2, 3, 4]),
        ({"start_s": 2.5, "end_s": 7.0}, [4, 5, 6, 7]),
        ({"start_s": 2.0, "limit": 2}, [3, 4]),
    ],
)
def test_windows(replay: Replay, setting: dict[str, Any], chosen: list[int]) -> None:
    requests = replay(STEADY, **setting)
    assert prompts(requests) == [10 * n for n in chosen]
    assert requests[0].arrival_s == 0


def test_an_empty_window_is_an_error(replay: Replay) -> None:
    with pytest.raises(TraceError, match="no request in the window asked for"):
        replay(STEADY, start_s=50.0)


def test_time_scale_stretches_gaps(replay: Replay) -> None:
    assert arrivals(replay(STEADY, time_scale=0.5)) == [i / 2 for i in range(10)]


def test_rate_scales_the_chosen_part(replay: Replay) -> None:
    assert arrivals(replay(STEADY, rate=4.0)) == [i / 4 for i in range(10)]
    uneven = csv((0, 1, 1), (1, 1, 1), (2, 1, 1), (100, 1, 1))
    assert arrivals(replay(uneven, limit=3, rate=10.0)) == pytest.approx([0, 0.1, 0.2])


def test_a_trace_of_one_moment_has_no_rate(replay: Replay) -> None:
    with pytest.raises(ConfigError, match="arrive at one moment"):
        replay(csv((3, 1, 1), (3, 1, 1)), rate=1.0)


def test_caps_cut_and_nothing_else_does(replay: Replay) -> None:
    text = csv((0, 50_000, 900))
    (request,) = replay(text)
    assert (request.num_prompt_tokens, request.max_tokens) == (50_000, 900)
    (request,) = replay(text, max_prompt_tokens=600, max_output_tokens=20)
    assert (request.num_prompt_tokens, request.max_tokens) == (600, 20)


def test_a_prompt_no_model_takes_costs_no_memory(replay: Replay) -> None:
    (request,) = replay(csv((0, 2**31 - 1, 1)))
    assert request.num_prompt_tokens == 2**31 - 1
    assert request.prompt_token_ids.base is not None


def test_scale_multiplies_lengths(replay: Replay) -> None:
    requests = replay(csv((0, 100, 10), (0, 1, 1)), scale=0.25)
    assert [(r.num_prompt_tokens, r.max_tokens) for r in requests] == [(25, 2), (1, 1)]


def test_ids_are_unique_and_name_the_line(replay: Replay) -> None:
    ids = [request.id for request in replay(STEADY)]
    assert ids == [f"vidur-{line}" for line in range(2, 12)]


def test_the_description_says_what_was_done(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "steady.csv"
    path.write_text(STEADY)
    description = opened(path, limit=5, rate=2.0, seed=3).description
    assert description == {
        "source": "steady.csv",
        "format": "Vidur CSV",
        "times": "seconds",
        "seed": 3,
        "limit": 5,
        "rate": 2.0,
        "requests": 5,
        "own_rate": 1.0,
        "span_s": 4.0,
    }


def test_a_long_trace_is_read_as_it_runs(
    opened: Open, drain: Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "WINDOW_ROWS", 20)
    path = tmp_path / "long.csv"
    path.write_text(csv(*((i, 5, 5) for i in range(100))) + "bad\n" + csv((101, 6, 6)).removeprefix(HEADER))
    source = opened(path, skip_bad=True)
    assert source.description["requests"] is None
    requests = drain(source)
    assert all(a.arrival_s < b.arrival_s for a, b in pairwise(requests))
    assert len(requests) == 101
    assert source.description["skipped_bad"] == {"1 columns where the header has 3": 1}


def test_a_bad_line_far_on_stops_a_running_trace(
    opened: Open, drain: Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "WINDOW_ROWS", 20)
    path = tmp_path / "long.csv"
    path.write_text(csv(*((i, 5, 5) for i in range(100))) + "bad\n")
    source = opened(path)
    assert len(source.take(50.0, 0)) == 51
    with pytest.raises(TraceError, match=r"long\.csv:102: 1 columns where the header has 3"):
        drain(source)
    assert len(source.take(1e9, 0)) <= 1, "what had arrived before the bad line was found"
    assert source.next_arrival_s() is None
