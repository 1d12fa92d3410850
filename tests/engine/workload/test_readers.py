"""Readers of other kinds of file can be added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from schedtop.engine.handoff.request import Request
from schedtop.engine.workload import register_reader, trace
from schedtop.engine.workload.source import RequestSource
from schedtop.engine.workload.trace import FileReader, Tally, Trace, TraceRow

Open = Callable[..., RequestSource]
Drain = Callable[..., list[Request]]


def test_an_added_reader_is_tried_first(
    opened: Open, drain: Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "READERS", readers := list(trace.READERS))

    def read(path: Path, tally: Tally) -> Trace:
        ids = np.frombuffer(path.read_bytes()[4:], dtype=np.uint64)
        rows = [TraceRow(1, 2.5, 35, 4, ids, priority=-1, id="first"), TraceRow(2, 3.0, 32, 4, ids)]
        return Trace("own recording", iter(rows), block_tokens=16)

    reader = FileReader("own", "own recording (.rec)", lambda head: head.startswith(b"MINE"), read)
    monkeypatch.setattr("schedtop.engine.workload.recognise.READERS", readers)
    register_reader(reader)
    register_reader(reader)
    assert readers.count(reader) == 1
    path = tmp_path / "x.rec"
    path.write_bytes(b"MINE" + np.array([2**63 + 1, 9], dtype=np.uint64).tobytes())
    source = opened(path)
    a, b = drain(source)
    assert (a.id, a.priority, a.arrival_s, b.arrival_s, b.id) == ("first", -1, 0, 0.5, "own-2")
    assert np.array_equal(a.prompt_token_ids[:32], b.prompt_token_ids)
    assert source.description["prefix_block_tokens"] == 16
    assert "noticed" not in source.description
    path.write_bytes(b"not known")
    with pytest.raises(trace.TraceError, match="own recording"):
        opened(path)
