"""Generated workloads: what each sends, and that a seed decides all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.presets import PRESETS
from schedtop.engine.workload.shown import flag_of
from schedtop.engine.workload.source import RequestSource

Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

NAMES = [preset.name for preset in PRESETS]


def same(first: list[Request], second: list[Request]) -> bool:
    def facts(request: Request) -> tuple[Any, ...]:
        return (
            request.id,
            request.arrival_s,
            request.max_tokens,
            request.priority,
            request.prompt_token_ids.tobytes(),
        )

    return [*map(facts, first)] == [*map(facts, second)]


def prefixes(requests: list[Request], tokens: int) -> Counter[bytes]:
    return Counter(request.prompt_token_ids[:tokens].tobytes() for request in requests)


def test_the_table_has_the_promised_names() -> None:
    assert NAMES == ["mixed", "shared-prefix", "unrelated", "pressure", "burst"]
    assert all(preset.summary for preset in PRESETS)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_everything(opened: Open, drain: Drain, name: str) -> None:
    first = drain(opened(name, seed=7), 300)
    assert same(first, drain(opened(name, seed=7), 300))
    assert not same(first, drain(opened(name, seed=8), 300))
    assert same(first[:40], drain(opened(name, seed=7, limit=40)))


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_follow_the_rate(opened: Open, drain: Drain, name: str) -> None:
    requests = drain(opened(name, rate=50.0), 4000)
    assert requests[0].arrival_s == 0
    assert 4000 / requests[-1].arrival_s == pytest.approx(50, rel=0.1)
    assert requests[0].sampling is not None
    assert requests[0].sampling.ignore_eos


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_model_len", [2, 64, 2048])
def test_every_request_fits_the_model(opened: Open, drain: Drain, name: str, max_model_len: int) -> None:
    for request in drain(opened(name, max_model_len=max_model_len, vocab_size=50), 300):
        assert request.num_prompt_tokens >= 1
        assert request.max_tokens >= 1
        assert request.num_prompt_tokens + request.max_tokens <= max_model_len
        assert request.prompt_token_ids.max() < 50
        assert request.prompt_token_ids.min() >= 0


def test_mixed_is_short_chats_beside_long_reports(opened: Open, drain: Drain) -> None:
    requests = drain(opened("mixed", max_model_len=32768), 2000)
    kinds = Counter(request.id.split("-")[0] for request in requests)
    assert kinds["chat"] > kinds["report"] > kinds["urgent"] > 0
    long = [request.num_prompt_tokens for request in requests if request.id.startswith("report")]
    short = [request.num_prompt_tokens for request in requests if not request.id.startswith("report")]
    assert np.median(long) > 10 * np.median(short)
    by_priority = Counter(request.priority for request in requests)
    assert by_priority[0] > len(requests) / 2
    assert by_priority[-1] == kinds["urgent"]
    assert by_priority[1] == kinds["report"]


def test_shared_prefixes_are_few_and_long(opened: Open, drain: Drain) -> None:
    requests = drain(opened("shared-prefix"), 400)
    assert len(prefixes(requests, 3072)) == 4
    assert len(prefixes(requests, 3073)) > 4


def test_unrelated_has_the_same_lengths_and_shares_nothing(opened: Open, drain: Drain) -> None:
    alone, shared = drain(opened("unrelated"), 400), drain(opened("shared-prefix"), 400)
    figures = [[(r.arrival_s, r.num_prompt_tokens, r.max_tokens) for r in requests] for requests in (alone, shared)]
    assert figures[0] == figures[1]
    assert len(prefixes(alone, 1)) == 400


def test_pressure_holds_more_than_others(opened: Open, drain: Drain) -> None:
    def mean_tokens(name: str) -> float:
        return float(
            np.mean([r.num_prompt_tokens + r.max_tokens for r in drain(opened(name, max_model_len=32768), 500)])
        )

    assert mean_tokens("pressure") > 2 * mean_tokens("mixed")


def test_scale_and_caps(opened: Open, drain: Drain) -> None:
    plain, half = drain(opened("shared-prefix"), 200), drain(opened("shared-prefix", scale=0.5), 200)
    for whole, part in zip(plain, half, strict=True):
        assert part.num_prompt_tokens == pytest.approx(whole.num_prompt_tokens / 2, abs=2)
        assert part.max_tokens == pytest.approx(whole.max_tokens / 2, abs=1)
    assert len(prefixes(half, 1536)) == 4
    capped = drain(opened("mixed", max_prompt_tokens=100, max_output_tokens=9), 200)
    assert max(request.num_prompt_tokens for request in capped) == 100
    assert max(request.max_tokens for request in capped) == 9


def test_the_description_is_plain(opened: Open) -> None:
    assert opened("unrelated", seed=4, limit=9).description == {
        "source": "unrelated",
        "summary": PRESETS[2].summary,
        "seed": 4,
        "rate": PRESETS[2].rate,
        "scale": 1.0,
        "limit": 9,
    }


@pytest.mark.parametrize(
    "setting",
    [
        {"rate": -1.0},
        {"rate": float("inf")},
        {"rate": float("nan")},
        {"scale": 0.0},
        {"scale": -2.0},
        {"seed": -1},
        {"limit": 0},
        {"max_prompt_tokens": 0},
        {"max_output_tokens": -3},
        {"time_scale": 2.0},
        {"start_s": 1.0},
        {"end_s": 5.0},
        {"prefix_block_tokens": 64},
        {"skip_bad": True},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_used_is_refused_by_its_flag(opened: Open, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{flag_of(next(iter(setting)))}[ :]|^rate="):
        opened("mixed", **setting)


def test_two_settings_of_pace_are_one_too_many(opened: Open) -> None:
    with pytest.raises(ConfigError, match="both set the pace"):
        opened("trace.csv", rate=2.0, time_scale=0.5)
    with pytest.raises(ConfigError, match="--end 2: must be above --start 3"):
        opened("trace.csv", start_s=3.0, end_s=2.0)
