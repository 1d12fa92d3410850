"""Mooncake, Bailian and vLLM bench prompts, with their quirks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.shown import flag_of
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import TraceError

Replay = Callable[..., list[Request]]
Drain = Callable[..., list[Request]]
Open = Callable[..., RequestSource]


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(timestamp: Any, length: Any, ids: Any, output: Any = 5) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": ids}


def bailian(timestamp: Any, length: Any, ids: Any) -> dict[str, Any]:
    return mooncake(timestamp, length, ids) | {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}


def common(first: Request, second: Request) -> int:
    """Length of the prompts' common beginning."""
    a, b = first.prompt_token_ids, second.prompt_token_ids
    size = min(len(a), len(b))
    (differ,) = np.nonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def test_mooncake_counts_milliseconds(replay: Replay) -> None:
    requests = replay(jsonl(mooncake(1000, 700, [0, 1]), mooncake(4027, 600, [0, 2]), mooncake(4027, 9, [3])))
    assert [request.arrival_s for request in requests] == [0, 3.027, 3.027]
    assert [request.num_prompt_tokens for request in requests] == [700, 600, 9]
    assert [request.max_tokens for request in requests] == [5, 5, 5]


def test_ids_are_shared_prefixes_of_512_tokens(replay: Replay) -> None:
    a, b, c = replay(
        jsonl(mooncake(0, 1200, [7, 8, 9]), mooncake(0, 1100, [7, 8, 10]), mooncake(0, 1200, [11, 8, 9]))
    )
    assert common(a, b) == 1024
    assert common(a, c) == 0


def test_a_partial_last_id_is_shared_as_far_as_it_goes(replay: Replay) -> None:
    a, b = replay(jsonl(mooncake(0, 600, [7, 8]), mooncake(0, 800, [7, 8])))
    assert common(a, b) == 600


def test_what_an_id_of_its_own_covers_is_the_requests_own(replay: Replay) -> None:
    a, b = replay(jsonl(mooncake(0, 700, [7, 8]), mooncake(0, 700, [7, 9])))
    assert common(a, b) == 512


def test_bailian_counts_seconds_and_16_tokens_an_id(replay: Replay) -> None:
    a, b = replay(jsonl(bailian(61.114, 40, [1, 2, 3]), bailian("62.614", 37, [1, 2, 4])))
    assert b.arrival_s == pytest.approx(1.5)
    assert common(a, b) == 32


def test_tokens_per_id_are_shown_and_can_be_changed(opened: Open, drain: Drain, tmp_path: Path) -> None:
    path = tmp_path / "mooncake"
    path.write_text(jsonl(mooncake(0, 100, [1, 2]), mooncake(1500, 100, [1, 3])))
    with pytest.raises(
        TraceError, match=r":1: more or fewer .*512 tokens an id \(--prefix-block-tokens\): '100 tok"
    ):
        opened(path)
    source = opened(path, prefix_block_tokens=64)
    assert source.description["prefix_block_tokens"] == 64
    a, b = drain(source)
    assert common(a, b) == 64


def test_ids_that_straddle_blocks_are_mentioned(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "mooncake"
    path.write_text(jsonl(mooncake(0, 100, [1, 2])))
    (note,) = opened(path, prefix_block_tokens=70).description["notes"]
    assert note == "70 tokens an id is not a multiple of block size 16: fewer hits than by ids"


def test_scaling_keeps_what_is_shared(replay: Replay) -> None:
    a, b, c = replay(
        jsonl(mooncake(0, 1100, [7, 8, 9]), mooncake(0, 1050, [7, 8, 9]), mooncake(0, 1536, [7, 8, 10])), scale=0.25
    )
    assert [request.num_prompt_tokens for request in (a, b, c)] == [256 + 19, 256 + 7, 384]
    assert common(a, b) == 256 + 7
    assert common(a, c) == 256
    assert a.max_tokens == 1


def test_rows_without_ids_share_nothing(replay: Replay) -> None:
    rows = [mooncake(0, 300, None), mooncake(0, 300, []), mooncake(0, 300, [])]
    del rows[0]["hash_ids"]
    a, b, c = replay(jsonl(*rows))
    assert common(a, b) == common(b, c) == common(a, c) == 0


def test_numbers_may_be_texts_and_ids_any_size(replay: Replay) -> None:
    (request,) = replay(jsonl(mooncake("12.0", "600.0", [-(2**70), 2**64 + 5], output=3.0)))
    assert (request.num_prompt_tokens, request.max_tokens) == (600, 3)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (mooncake(0, 0, []), "input_length is 0"),
        (mooncake(0, 5, [], output=0), "output_length is 0"),
        (mooncake(None, 5, []), "timestamp is missing"),
        (mooncake(0, True, []), "input_length is not a number: True"),
        (mooncake(0, [5], []), "input_length is not a number: [5]"),
        (mooncake(0, 5, {"a": [1]}), "hash_ids is not a list of whole numbers: {'a': [1]}"),
        (mooncake(0, 5, [1.5]), "hash_ids is not a list of whole numbers: [1.5]"),
        (mooncake(0, 5, ["1"]), "hash_ids is not a list of whole numbers: ['1']"),
    ],
)
def test_a_bad_row_names_its_line(replay: Replay, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        replay(jsonl(mooncake(0, 5, [1]), row))
    assert str(caught.value).endswith(f"trace:2: {reason}")


@pytest.mark.parametrize("line", ["{", "[1]", '{"timestamp": 0,', "nonsense", "[" * 100_000, '{"a":\xff}'])
def test_a_line_that_is_no_json_object(replay: Replay, line: str) -> None:
    with pytest.raises(TraceError, match=r"trace:2: not a (line of JSON|JSON object): "):
        replay(jsonl(mooncake(0, 5, [1])) + line)


def test_prompts_as_texts_share_what_their_texts_share(replay: Replay) -> None:
    system = "You are a careful assistant. " * 40
    rows: list[dict[str, Any]] = [
        {"prompt": system + "What is paging?", "output_tokens": 12},
        {"prompt": system + "Why chunk?"},
    ]
    a, b = replay(jsonl(*rows), rate=100.0)
    assert (a.max_tokens, b.max_tokens) == (12, 256)
    assert a.num_prompt_tokens == -(-len(rows[0]["prompt"]) // 4)
    assert common(a, b) == len(system) // 4


def test_prompts_go_through_the_models_tokenizer(tmp_path: Path) -> None:
    from schedtop.engine.contract.config import WorkloadSpec
    from schedtop.engine.workload import open_source

    path = tmp_path / "prompts"
    path.write_text(jsonl({"prompt": "abc"}, {"prompt": "dé", "output_tokens": "7"}))
    spec = WorkloadSpec(source=str(path), max_prompt_tokens=2)
    source = open_source(
        spec, max_model_len=99, vocab_size=256, block_size=16, encode=lambda text: [ord(char) for char in text]
    )
    a, b = source.take(1e9, 0)
    assert (a.prompt_token_ids.tolist(), b.prompt_token_ids.tolist()) == ([97, 98], [100, 233])
    assert b.prompt_token_ids.dtype == np.int32


def test_prompts_say_how_they_arrive(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text(jsonl({"prompt": "abc"}))
    description = opened(path).description
    assert (description["own_rate"], description["arrivals"]) == (1.0, "no times in the file: Poisson")


@pytest.mark.parametrize("prompt", ["", None, 5, ["a"]])
def test_a_prompt_must_be_a_text(replay: Replay, prompt: Any) -> None:
    with pytest.raises(TraceError, match="trace:1: prompt is"):
        replay(jsonl({"prompt": prompt}))


@pytest.mark.parametrize("setting", [{"scale": 2.0}, {"start_s": 1.0}, {"end_s": 1.0}, {"prefix_block_tokens": 16}])
def test_settings_that_prompts_cannot_follow_are_refused(replay: Replay, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="^" + flag_of(next(iter(setting)))):
        replay(jsonl({"prompt": "abc"}), **setting)
