"""What clients sent to vLLM 0.32 and what it answered, sent again: the same statuses, the same shapes.

`openai-exchanges.json` was recorded through a proxy: `vllm bench serve` and curl, first and last chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.http.served import Served, events, serving

EXCHANGES = json.loads((Path(__file__).parent / "openai-exchanges.json").read_text())

LEFT_OUT = {
    "completion_tokens_details": "always null there",
    "ec_transfer_params": "always null there",
    "kv_transfer_params": "always null there",
    "metrics": "always null there",
    "permission": "no client reads it",
    "prompt_logprobs": "always null there",
    "prompt_text": "always null there",
    "prompt_token_ids": "null unless asked for, which is refused here",
    "routed_experts": "always null there",
    "service_tier": "always null there",
    "system_fingerprint": "names vLLM's build",
    "token_ids": "null unless asked for, which is refused here",
}


@pytest.fixture(scope="module")
def served(token_file: Path) -> Iterator[Served]:
    with serving(served_model_name=("smollm2",)) as server:
        yield server


def name(exchange: dict[str, Any]) -> str:
    body = exchange["body"]
    kind = "" if not isinstance(body, dict) else "stream" if body.get("stream") else str(body.get("max_tokens", ""))
    return f"{exchange['method']} {exchange['path']} {exchange['status']} {kind}".strip()


def shape(value: Any) -> Any:
    """Keys at every depth, without those that are left out on purpose; values only by whether they are there."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [shape(entry) for entry in value[:1]]
    return None


def holds(ours: Any, theirs: Any) -> bool:
    """Whether every key of their shape is in ours."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and holds(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return isinstance(ours, list) and all(holds(o, t) for o, t in zip(ours, theirs, strict=False))
    return True


@pytest.mark.parametrize("exchange", EXCHANGES, ids=name)
def test_a_recorded_exchange_is_answered_alike(served: Served, exchange: dict[str, Any]) -> None:
    body = exchange["body"]
    content = json.dumps(body) if isinstance(body, dict) else body
    headers = {key: value for key, value in exchange["headers"].items() if key != "accept-encoding"}
    response = served.http.request(exchange["method"], exchange["path"], content=content, headers=headers)
    assert response.status_code == exchange["status"], response.text
    if wanted := exchange["answer_headers"].get("content-type"):
        assert response.headers["content-type"] == wanted
    if "text/event-stream" in (wanted or ""):
        compare_streams(events(response), exchange["chunks"])
    elif "json" in (wanted or ""):
        compare(response.json(), json.loads(exchange["chunks"][0]))


def compare_streams(ours: list[str], theirs: list[str]) -> None:
    """First and last events; the recording leaves out those between them."""
    recorded = [chunk.removeprefix("data: ").strip() for chunk in theirs]
    assert ours[-1] == recorded[-1] == "[DONE]"
    for mine, their in ((ours[0], recorded[0]), (ours[1], recorded[1]), (ours[-2], recorded[-2])):
        compare(json.loads(mine), json.loads(their))


def compare(ours: Any, theirs: Any) -> None:
    assert holds(ours, shape(theirs)), (ours, theirs)
    for key in ("object", "model"):
        assert ours.get(key) == theirs.get(key)
    if str(theirs.get("id", "")).startswith("cmpl-bench"):
        assert ours["id"] == theirs["id"]
    if "error" in theirs and not str(theirs["error"]["param"]).startswith("body"):
        assert ours["error"]["param"] == theirs["error"]["param"]
        assert ours["error"]["code"] == theirs["error"]["code"]
        assert ours["error"]["type"] == theirs["error"]["type"]
    if theirs.get("usage") and "choices" in theirs and not theirs["choices"]:
        assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
