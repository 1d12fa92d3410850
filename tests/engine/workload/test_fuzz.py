"""Whatever is in a file: requests, or one `TraceError`."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import TraceError

Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

ROW = {"timestamp": 5, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]}
RESULT = {"input_lens": [5, 6], "output_lens": [1, 2], "start_times": [1.5, 2.5], "errors": ["", ""], "duration": 3}
SAMPLES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04,31,8\n",
    "splitwise": "arrival_timestamp,batch_size,prompt_size,token_size\n0.5,1,37,4\n1.5,1,39,9\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,374,44\n5.8926549999999995,396,109\n",
    "untimed": "num_prefill_tokens,num_decode_tokens\n374,44\n396,109\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,472,18\n45.0,ChatGPT,1087,0\n",
    "mooncake": json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n",
    "bailian": json.dumps(ROW | {"chat_id": 1, "turn": 2}) + "\n",
    "prompts": json.dumps({"prompt": "hello wörld", "output_tokens": 4}, ensure_ascii=False) + "\n",
    "results": json.dumps(RESULT) + "\n" + json.dumps(RESULT, indent=1),
}
SAMPLES |= {
    path.name: path.read_text() for path in sorted((Path(__file__).parents[2] / "field" / "traces").iterdir())
}
SPLICES = [
    b"",
    b"\n",
    b"\r",
    b",",
    b'"',
    b"{",
    b"}",
    b"[",
    b"-",
    b"0",
    b"9" * 400,
    b"1e999",
    b"nan",
    b"\xff",
    b"\0",
    b"null",
]


def survives(opened: Open, drain: Drain, path: Path, content: bytes, skip_bad: bool) -> None:
    path.write_bytes(content)
    try:
        requests = drain(opened(path, skip_bad=skip_bad), 50)
    except TraceError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
    else:
        for request in requests:
            assert 0 <= request.arrival_s < 1e13
            assert request.max_tokens >= 1
            assert request.num_prompt_tokens >= 1
            assert request.prompt_token_ids[0] < 32000


def mutated(rng: random.Random, content: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(SPLICES) + content[at + rng.randint(0, 3) :]
    return content


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_traces(opened: Open, drain: Drain, tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    for turn in range(300):
        survives(opened, drain, tmp_path / "t", mutated(rng, SAMPLES[name].encode()), turn % 2 == 0)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_mutated_packing(opened: Open, drain: Drain, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    rng = random.Random(1)
    packed = pack(SAMPLES["vidur"].encode() * 20)
    for turn in range(200):
        survives(opened, drain, tmp_path / "t", mutated(rng, packed), turn % 2 == 0)


@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x1f\x8b", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"{", b'{"prompt":', b"arrived_at,"]),
)
def test_random_bytes(opened: Open, drain: Drain, tmp_path: Path, content: bytes, start: bytes) -> None:
    survives(opened, drain, tmp_path / "t", start + content, False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*ROW, *RESULT, "chat_id", "prompt", "output_tokens", "mean_ttft_ms", "request_rate"])


@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(keys, json_values), min_size=1, max_size=3), st.sampled_from([ROW, RESULT, {}]))
def test_any_json_under_the_known_keys(
    opened: Open, drain: Drain, tmp_path: Path, rows: list[dict[str, object]], base: dict[str, object]
) -> None:
    content = "\n".join(json.dumps(base | row) for row in rows)
    survives(opened, drain, tmp_path / "t", content.encode(), False)
