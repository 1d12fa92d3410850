"""The published traces, where they are at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload.source import RequestSource

Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]

TRACES = Path(__file__).parents[4] / "shared" / "traces"
AZURE = TRACES / "AzureLLMInferenceTrace_code.csv"
MOONCAKE = TRACES / "mooncake_synthetic_trace.jsonl"

pytestmark = pytest.mark.skipif(not (AZURE.exists() and MOONCAKE.exists()), reason="the public traces are absent")


def test_azure_code_has_8819_requests(opened: Open, drain: Drain) -> None:
    source = opened(AZURE)
    requests = drain(source)
    assert len(requests) == source.description["requests"] == 8819
    assert "inversions" not in source.description
    assert (requests[0].arrival_s, requests[0].num_prompt_tokens, requests[0].max_tokens) == (0, 4808, 10)
    assert requests[1].arrival_s == pytest.approx(0.052, abs=1e-9)
    assert requests[-1].arrival_s == pytest.approx(3435.948056, abs=1e-6)
    assert (requests[-1].num_prompt_tokens, requests[-1].max_tokens) == (549, 173)


def test_mooncake_hit_rate_by_ids_is_in_the_tokens(opened: Open, drain: Drain) -> None:
    """An unbounded cache hits 64.0 % of ids in file order, and exactly as much of the prompts' 512-token pieces."""
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    requests = drain(opened(MOONCAKE, max_model_len=200_000))
    assert len(requests) == len(rows) == 3993
    seen_ids: set[int] = set()
    seen_pieces: set[bytes] = set()
    hits = pieces = 0
    for row, request in zip(rows, requests, strict=True):
        assert request.num_prompt_tokens == row["input_length"]
        # A piece's first eight tokens tell it from the others: quicker than all 512.
        tokens = request.prompt_token_ids
        for place, prefix_id in enumerate(row["hash_ids"]):
            piece = tokens[place * 512 : (place + 1) * 512]
            known = piece[:8].tobytes() in seen_pieces
            assert known == (prefix_id in seen_ids)
            hits += known
            pieces += 1
        seen_ids.update(row["hash_ids"])
        seen_pieces.update(tokens[at : at + 8].tobytes() for at in range(0, len(tokens), 512))
    assert round(100 * hits / pieces, 1) == 64.0


def test_equal_ids_are_equal_tokens_to_the_last(opened: Open, drain: Drain) -> None:
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()[:300]]
    requests = drain(opened(MOONCAKE, max_model_len=200_000, limit=300))
    pieces: dict[int, np.ndarray] = {}
    for row, request in zip(rows, requests, strict=True):
        for place, prefix_id in enumerate(row["hash_ids"]):
            piece = request.prompt_token_ids[place * 512 : (place + 1) * 512]
            known = pieces.setdefault(prefix_id, piece)
            size = min(len(piece), len(known))
            assert np.array_equal(piece[:size], known[:size])
