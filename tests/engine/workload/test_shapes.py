"""Shapes of load files that people have: each is read as what it is, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]
Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

TRACES = Path(__file__).parents[2] / "field" / "traces"

TIMED = {
    "t05-weka.jsonl": ("WEKA JSONL", "seconds", [(0.0, 300, 20), (3.2, 420, 15)]),
    "t07-engine-log.csv": ("engine log CSV", "seconds", [(0.0, 1200, 90), (4.5, 1500, 60)]),
    "t08-guidellm.json": ("guidellm report", "seconds", [(0.0, 100, 20)]),
    "t09-profile_export.jsonl": ("AIPerf export", "nanoseconds", [(0.0, 100, 20)]),
    "t11-azure-lmm.csv": ("Azure LLM inference CSV", "dates", [(0.0, 1800, 60), (1.2, 400, 30)]),
    "t12-aibrix.jsonl": ("AIBrix JSONL", "milliseconds", [(0.0, 300, 40), (0.0, 120, 20), (1.0, 500, 10)]),
    "t18-extra.jsonl": ("Mooncake JSONL", "milliseconds", [(0.0, 1000, 5)]),
    "t20-generic.csv": ("arrival CSV", "milliseconds", [(0.0, 100, 10), (0.05, 100, 10)]),
    "t21-blis.csv": ("BLIS CSV", "seconds", [(0.0, 5047, 514), (0.57, 4958, 378)]),
}
UNTIMED = {
    "t03-aiperf-text.jsonl": ("AIPerf prompts", [(5, 20), (10, 60)]),
    "t04-mooncake-untimed.jsonl": ("Mooncake JSONL without times", [(655, 52), (672, 26)]),
    "t10-sharegpt.json": ("ShareGPT JSON", [(6, 5)]),
}
REFUSED = {
    "t01-rollouts.jsonl": "1: rollouts are not read: each has turns, whose arrival depends on the answer before it",
    "t02-aiperf-delay.jsonl": "2: a row with delay instead of timestamp: a turn, whose arrival depends on",
    "t06-sessions.csv": "3: a row with tool_wait_s instead of arrival_time_s: a turn, whose arrival depends on",
    "t25-embed.csv": "2: num_decode_tokens is 0: requests without outputs, such as embeddings, need --pooling",
}


def test_every_file_has_its_line_here() -> None:
    assert {path.name for path in TRACES.iterdir()} == TIMED.keys() | UNTIMED.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", TIMED)
def test_a_file_with_times(opened: Open, drain: Drain, name: str) -> None:
    kind, times, wanted = TIMED[name]
    source = opened(TRACES / name)
    found = [(request.arrival_s, request.num_prompt_tokens, request.max_tokens) for request in drain(source)]
    assert (source.description["format"], source.description["times"]) == (kind, times)
    assert found == [(pytest.approx(at_s, abs=1e-6), prompt, output) for at_s, prompt, output in wanted]


@pytest.mark.parametrize("name", UNTIMED)
def test_a_file_without_times(opened: Open, drain: Drain, name: str) -> None:
    kind, wanted = UNTIMED[name]
    source = opened(TRACES / name)
    assert [(request.num_prompt_tokens, request.max_tokens) for request in drain(source)] == wanted
    assert source.description["format"] == kind and "Poisson" in source.description["arrivals"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused_by_name(opened: Open, name: str) -> None:
    with pytest.raises(TraceError) as caught:
        opened(TRACES / name)
    assert str(caught.value).startswith(f"{TRACES / name}:{REFUSED[name]}")


@pytest.mark.parametrize(("name", "left"), [("t02-aiperf-delay.jsonl", 2), ("t06-sessions.csv", 2)])
def test_first_turns_can_be_replayed_alone(opened: Open, drain: Drain, name: str, left: int) -> None:
    source = opened(TRACES / name, skip_bad=True)
    assert len(drain(source)) == left and sum(source.description["skipped_bad"].values()) == 1


def test_requests_of_one_line_share_nothing_but_their_time(replay: Replay) -> None:
    asks = [{"Prompt Length": 64, "Output Length": 4}] * 3
    requests = replay(json.dumps({"timestamp": 0, "requests": asks}))
    assert len({request.id for request in requests}) == 3
    assert len({bytes(request.prompt_token_ids[:16]) for request in requests}) == 3


def test_weka_ids_are_as_wide_as_the_file_says(opened: Open, drain: Drain) -> None:
    source = opened(TRACES / "t05-weka.jsonl")
    first, second = drain(source)
    assert source.description["prefix_block_tokens"] == 64
    assert (first.prompt_token_ids[:300] == second.prompt_token_ids[:300]).all()


def test_failed_requests_of_reports_are_dropped_and_counted(opened: Open, drain: Drain, tmp_path: Path) -> None:
    ask = {"prompt_tokens": 5, "output_tokens": 2, "request_start_time": 1.0}
    lists = {"successful": [ask, ask], "incomplete": [ask], "errored": [ask | {"output_tokens": None}]}
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"metadata": {"version": 1}, "benchmarks": [{"requests": lists}]}, indent=2))
    source = opened(path)
    assert len(drain(source)) == 2
    assert source.description["dropped"] == {"incomplete request": 1, "errored request": 1}


def test_failed_exports_and_odd_conversations_are_dropped(opened: Open, drain: Drain, tmp_path: Path) -> None:
    export: dict[str, Any] = json.loads((TRACES / "t09-profile_export.jsonl").read_text())
    path = tmp_path / "export.jsonl"
    path.write_text(json.dumps(export) + "\n" + json.dumps(export | {"error": {"code": 500}}) + "\n")
    source = opened(path)
    assert len(drain(source)) == 1 and source.description["dropped"] == {"failed request": 1}
    talk = json.loads((TRACES / "t10-sharegpt.json").read_text())[0]
    path.write_text(
        json.dumps([talk, {"id": "b", "conversations": []}, talk | {"conversations": talk["conversations"][1:]}])
    )
    source = opened(path)
    assert len(drain(source)) == 1 and sum(source.description["dropped"].values()) == 2


def test_priorities_are_the_requests_own(replay: Replay, opened: Open, drain: Drain) -> None:
    (request,) = drain(opened(TRACES / "t18-extra.jsonl"))
    assert request.priority == 5
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens,priority\n0,5,2,-3\n1,5,2,\n2,5,2,1.0\n"
    assert [request.priority for request in replay(rows)] == [-3, 0, 1]
    with pytest.raises(TraceError, match=":2: priority is not a number: 'high'"):
        replay("arrived_at,num_prefill_tokens,num_decode_tokens,priority\n0,5,2,high\n")
