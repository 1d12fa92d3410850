"""vLLM bench result files: one run, several, with and without start times."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]


def result(**changes: Any) -> dict[str, Any]:
    run = {
        "mean_ttft_ms": 12.5,
        "request_rate": "inf",
        "duration": 10.0,
        "input_lens": [100, 200, 300],
        "output_lens": [10, 20, 30],
        "ttfts": [0.1, 0.2, 0.3],
        "itls": [[0.01] * 9, [0.01] * 19, [0.01] * 29],
        "start_times": [5000.5, 5001.0, 5003.5],
        "errors": ["", "", ""],
    }
    return {key: value for key, value in (run | changes).items() if value is not None}


def figures(requests: list[Request]) -> list[tuple[float, int, int]]:
    return [(request.arrival_s, request.num_prompt_tokens, request.max_tokens) for request in requests]


RUN = [(0, 100, 10), (0.5, 200, 20), (3, 300, 30)]


@pytest.mark.parametrize("indent", [None, 1], ids=["one line", "many lines"])
def test_a_run_is_replayed_at_its_start_times(replay: Replay, indent: int | None) -> None:
    assert figures(replay(json.dumps(result(), indent=indent))) == RUN


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
def test_appended_runs_follow_each_other_by_duration(replay: Replay, indent: int | None) -> None:
    second = result(start_times=[7.0, 7.0, 8.0], errors=None)
    text = "\n".join(json.dumps(run, indent=indent) for run in (result(), second))
    assert figures(replay(text)) == [*RUN, (10, 100, 10), (10, 200, 20), (11, 300, 30)]


def test_failed_requests_are_dropped(replay: Replay) -> None:
    run = result(output_lens=[10, 0, 30], errors=["", "", "connection reset"])
    assert figures(replay(json.dumps(run))) == RUN[:1]


def test_start_times_out_of_order_are_sorted(replay: Replay) -> None:
    run = result(start_times=[5003.5, 5000.5, 5001.0])
    assert figures(replay(json.dumps(run))) == [(0, 200, 20), (0.5, 300, 30), (3, 100, 10)]


def test_without_start_times_the_rate_of_the_run_is_used(replay: Replay) -> None:
    lens = {"input_lens": [5] * 500, "output_lens": [5] * 500, "errors": None, "start_times": None}
    requests = replay(json.dumps(result(request_rate=25.0, **lens)))
    assert 500 / requests[-1].arrival_s == pytest.approx(25, rel=0.2)


def test_an_infinite_rate_is_all_at_once_unless_one_is_given(replay: Replay) -> None:
    text = json.dumps(result(start_times=None))
    assert [request.arrival_s for request in replay(text)] == [0, 0, 0]
    assert replay(text, rate=2.0)[-1].arrival_s > 0


def test_a_result_without_details_is_named(replay: Replay) -> None:
    with pytest.raises(TraceError, match="without input_lens and output_lens: save it detailed"):
        replay(json.dumps({"mean_ttft_ms": 3.0, "request_throughput": 2.0}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(result(output_lens=[1])), ":1: output_lens is not a list with one entry per request"),
        (json.dumps(result(start_times=[1, 2, "x"])), ":1: an entry of start_times is not a number: 'x'"),
        (json.dumps(result(input_lens=[1, 2, -3])), ":1: an entry of input_lens is negative: -3"),
        (json.dumps(result()) + "\n" + json.dumps(result())[:-9], ":2: "),
        (json.dumps(result(itls=[]), indent=1) + "\n[4]", ":32: not a JSON object"),
        (json.dumps(result()) + "\n" + '{"a":' * 100_000, ":2: not JSON that can be read"),
    ],
    ids=["short list", "start time", "length", "cut short", "array", "deep"],
)
def test_a_bad_run_names_its_line(replay: Replay, text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        replay(text)
    assert f"trace{message}" in str(caught.value)


def test_a_bad_run_can_be_skipped(replay: Replay) -> None:
    text = json.dumps(result()) + "\n" + json.dumps(result(output_lens=[1])) + "\n" + json.dumps(result())
    assert len(replay(text, skip_bad=True)) == 6
