"""What a trace says of a request beside its lengths: its LoRA adapter, and whether it looks for a prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]
Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens"


def adapters(requests: list[Request]) -> list[tuple[int, str]]:
    return [(request.adapter, request.adapter_name) for request in requests]


@pytest.mark.parametrize("column", ["lora", "LoRA", "lora_name"])
def test_a_csv_column_names_them(replay: Replay, column: str) -> None:
    rows = ["0,10,2,sql", "1,10,2,", "2,10,2,fr", "3,10,2,sql", "4,10,2,none", "5,10,2,0"]
    found = adapters(replay("\n".join([f"{VIDUR},{column}", *rows])))
    assert found == [(1, "sql"), (0, ""), (2, "fr"), (1, "sql"), (0, ""), (0, "")]


def test_a_json_key_names_them(replay: Replay) -> None:
    line = '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1], "lora": %s}'
    assert adapters(replay("\n".join(line % name for name in ('"sql"', "7", "null", "0")))) == [
        (1, "sql"),
        (2, "7"),
        (0, ""),
        (0, ""),
    ]
    assert adapters(replay('{"prompt": "hello", "lora": "sql"}')) == [(1, "sql")]


def test_what_is_no_name_is_a_bad_line(replay: Replay) -> None:
    with pytest.raises(TraceError, match="trace:1: lora is not a name of an adapter"):
        replay('{"timestamp": 0, "input_length": 10, "output_length": 2, "lora": [1]}')


def test_requests_are_spread_evenly_and_the_same_way_again(opened: Open, drain: Drain) -> None:
    plain = drain(opened("mixed", limit=600))
    spread = drain(opened("mixed", limit=600, adapters=3))
    counts = Counter(request.adapter_name for request in spread)
    assert set(counts) == {"adapter-1", "adapter-2", "adapter-3"} and min(counts.values()) > 150
    assert adapters(spread) == adapters(drain(opened("mixed", limit=600, adapters=3)))
    assert [request.prompt_token_ids.tolist() for request in plain] == [
        request.prompt_token_ids.tolist() for request in spread
    ]


def test_a_name_in_the_trace_goes_first(replay: Replay) -> None:
    found = replay(f"{VIDUR},lora\n0,10,2,sql\n1,10,2,", adapters=1)
    assert adapters(found) == [(1, "sql"), (2, "adapter-1")]


def test_a_negative_number_is_refused(opened: Open) -> None:
    with pytest.raises(ConfigError, match="--adapters -1: must be at least 0"):
        opened("mixed", adapters=-1)


@pytest.mark.parametrize(
    ("cell", "skips"), [("", False), ("0", False), ("false", False), ("1", True), ("True", True)]
)
def test_a_column_says_who_looks_for_no_prefix(replay: Replay, cell: str, skips: bool) -> None:
    (found,) = replay(f"{VIDUR},skip_reading_prefix_cache\n0,10,2,{cell}")
    assert found.skip_reading_prefix_cache is skips


def test_a_key_says_who_looks_for_no_prefix(replay: Replay) -> None:
    line = (
        '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1], "skip_reading_prefix_cache": %s}'
    )
    found = replay("\n".join(line % value for value in ("true", "false", "null")))
    assert [request.skip_reading_prefix_cache for request in found] == [True, False, False]
    with pytest.raises(TraceError, match="trace:1: skip_reading_prefix_cache is neither true nor false"):
        replay(line % '"maybe"')
