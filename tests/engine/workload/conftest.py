from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload import open_source
from schedtop.engine.workload.source import RequestSource

Opener = Callable[..., RequestSource]
Replayer = Callable[..., list[Request]]


def _open(source: object, max_model_len: int = 8192, vocab_size: int = 32000, **spec: Any) -> RequestSource:
    return open_source(
        WorkloadSpec(source=str(source), **spec), max_model_len=max_model_len, vocab_size=vocab_size, block_size=16
    )


def _drain(source: RequestSource, most: int = 10**6) -> list[Request]:
    """Requests in order of arrival, taken one moment at a time."""
    taken: list[Request] = []
    while len(taken) < most and (next_s := source.next_arrival_s()) is not None:
        taken += source.take(next_s, 0)
    return taken[:most]


@pytest.fixture
def opened() -> Opener:
    """`opened(source, **spec)` is an open source with a model of 8,192 tokens and blocks of 16."""
    return _open


@pytest.fixture
def drain() -> Callable[..., list[Request]]:
    return _drain


@pytest.fixture
def replay(tmp_path: Path) -> Replayer:
    """`replay(content, **spec)` writes a trace file and returns all its requests."""

    def run(content: str | bytes, **spec: Any) -> list[Request]:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return _drain(_open(path, **spec))

    return run
