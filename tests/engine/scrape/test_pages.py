"""Pages of real servers, of older and other ones, and of servers that lie."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.scrape.page import EngineKey, PageError, PageReading, read_page
from schedtop.engine.scrape.window import ReadingWindow, describe, merged, percentile

PAGES = Path(__file__).parent / "pages"
FIRST, SECOND = EngineKey("smollm2", "0"), EngineKey("smollm2", "1")


def page(name: str) -> dict[EngineKey, PageReading]:
    return read_page((PAGES / f"vllm-0.32-{name}.txt").read_text())


def test_one_engine_under_load() -> None:
    found = page("metrics-under-load")
    assert list(found) == [FIRST]
    reading = found[FIRST]
    assert reading.gauges.keys() == {"running", "waiting", "kv_usage"}
    assert reading.counters["output_tokens"] > 0 and reading.histograms["itl"][-1][0] == math.inf


def test_two_engines_are_two_and_their_usage_is_not_added_up() -> None:
    found = page("dp2-under-load-1")
    assert list(found) == [FIRST, SECOND]
    assert round(found[FIRST].gauges["kv_usage"], 2) != round(found[SECOND].gauges["kv_usage"], 2)


def test_what_was_added_between_two_pages_is_merged_over_engines() -> None:
    """The bounds are the page's own; the figures are the differences of its counts."""
    windows = {FIRST: ReadingWindow(), SECOND: ReadingWindow()}
    for at_s, name in ((0.0, "dp2-under-load-1"), (1.5, "dp2-under-load-2")):
        for key, reading in page(name).items():
            windows[key].add(at_s, reading)
    before, after = page("dp2-under-load-1"), page("dp2-under-load-2")
    for key, window in windows.items():
        added = after[key].counters["output_tokens"] - before[key].counters["output_tokens"]
        assert window.rate("output_tokens", 60.0) == added / 1.5
        buckets = window.buckets("itl", 60.0)
        assert buckets is not None
        delivered = after[key].histograms["itl"][-1][1] - before[key].histograms["itl"][-1][1]
        assert sum(count for _, count in buckets) == delivered
    both = merged(window.buckets("itl", 60.0) for window in windows.values())
    assert both is not None
    bound = percentile(both, 0.5)
    assert bound is not None and bound.low_s is not None and bound.low_s < bound.high_s


OLD = """\
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 1
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:generation_tokens_total{model_name="m"} 100
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 5
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 9
vllm:request_success_total{finished_reason="stop",model_name="m"} 2
vllm:request_success_total{finished_reason="length",model_name="m"} 3
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m",dp_rank="1"} 3
sglang:num_queue_reqs{model_name="m",dp_rank="1"} 2
sglang:token_usage{model_name="m",dp_rank="1"} 0.5
sglang:num_retracted_reqs{model_name="m",dp_rank="1"} 7
sglang:num_retracted_requests_total{model_name="m",dp_rank="1"} 4
"""


def test_old_names_mean_the_same() -> None:
    reading = read_page(OLD)[EngineKey("m", "0")]
    assert reading.gauges == {"running": 3, "waiting": 1, "kv_usage": 0.25}
    assert reading.counters == {"output_tokens": 100, "finished": 5}
    assert reading.histograms == {"itl": [(0.01, 5.0), (math.inf, 9.0)]}


def test_sglang_counts_what_it_took_back_not_the_gauge_of_the_last_batch() -> None:
    reading = read_page(SGLANG)[EngineKey("m", "1")]
    assert reading.gauges == {"running": 3, "waiting": 2, "kv_usage": 0.5}
    assert reading.counters == {"preemptions": 4}


def test_where_a_page_has_both_names_the_new_one_counts() -> None:
    both = OLD + 'vllm:kv_cache_usage_perc{model_name="m"} 0.75\n'
    assert read_page(both)[EngineKey("m", "0")].gauges["kv_usage"] == 0.75


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html><body>hello</body></html>", "not a metrics page"),
        ("", "no figure of vLLM or SGLang"),
        ("node_cpu_seconds_total 5\n", "no figure of vLLM or SGLang"),
        ('vllm:num_requests_running{engine="0" 5', "not a metrics page"),
        ('vllm:time_to_first_token_seconds_bucket{le="soon"} 5\n', "not a metrics page"),
        ("vllm:num_requests_running nan\n", "no figure"),
        ("".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(300)), "describes 300 engines"),
    ],
)
def test_a_page_that_tells_nothing_says_why(text: str, why: str) -> None:
    with pytest.raises(PageError, match=why):
        read_page(text)


def reading(output_tokens: float, itl: list[float] | None = None) -> PageReading:
    bounds = [0.01, 0.025, math.inf]
    histograms = {} if itl is None else {"itl": list(zip(bounds, itl, strict=True))}
    return PageReading({}, {"output_tokens": output_tokens}, histograms)


def test_a_counter_that_falls_is_a_restart_and_no_negative_rate() -> None:
    window = ReadingWindow()
    for at_s, tokens in ((0.0, 100.0), (1.0, 150.0), (2.0, 5.0)):
        window.add(at_s, reading(tokens))
    assert (window.restarts, window.rate("output_tokens", 60.0)) == (1, None)
    window.add(3.0, reading(25.0))
    assert window.rate("output_tokens", 60.0) == 20.0


def test_a_percentile_in_the_first_bucket_has_no_lower_bound() -> None:
    window = ReadingWindow()
    window.add(0.0, reading(0, [0, 0, 0]))
    window.add(1.0, reading(0, [90, 99, 100]))
    buckets = window.buckets("itl", 60.0)
    assert [describe(percentile(buckets, share)) for share in (0.5, 0.95, 0.995)] == [
        "≤10 ms",
        "10–25 ms",
        ">25 ms",
    ]


def test_a_figure_that_is_not_known_is_not_nought() -> None:
    window = ReadingWindow()
    window.add(0.0, reading(1))
    assert window.rate("output_tokens", 60.0) is None
    window.add(1.0, reading(2))
    assert window.rate("prompt_tokens", 60.0) is None
    assert describe(percentile(window.buckets("itl", 60.0), 0.5)) == "n/a"


def test_engines_with_other_bounds_have_no_percentile_together() -> None:
    assert merged([[(0.1, 5.0), (math.inf, 1.0)], [(0.2, 5.0), (math.inf, 1.0)]]) is None
    assert merged([[(0.1, 5.0), (math.inf, 1.0)], None]) is None


@given(
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    st.floats(0.01, 1.0),
)
def test_a_percentile_lies_within_its_bounds(below: list[int], more: list[int], share: float) -> None:
    """Against the values themselves, placed at the upper bound of their bucket."""
    window, before, after = ReadingWindow(), [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for place in range(3):
        for later in range(place, 3):
            before[later] += below[place]
            after[later] += below[place] + more[place]
    window.add(0.0, reading(0, before))
    window.add(1.0, reading(0, after))
    values = [place for place, count in enumerate(more) for _ in range(count)]
    bound = percentile(window.buckets("itl", 60.0), share)
    if not values:
        assert bound is None
        return
    place = values[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert bound is not None and bound.high_s == [0.01, 0.025, math.inf][place]
    assert bound.num_values == len(values)
