from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.step.engine import Engine

PRESSED = {"max_num_seqs": 16, "num_blocks": 400, "max_model_len": 4096}

Record = Callable[..., Path]


def turn(engine: Engine, i: int, last: StepRecord | None) -> None:
    """What an operator did before record `i`."""
    if i % 97 == 50:
        engine.set_knobs({"max_num_seqs": 12 + i % 7, "max_num_batched_tokens": 512 + i}, by="test")
    if i % 61 == 30 and last is not None and last.rows:
        engine.abort(int(row_columns(last)["request"][0]))
    if i in (200, 201):
        (engine.pause if i == 200 else engine.resume)()


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Records so many records of an engine to a file of its own."""

    def make(
        num_records: int = 400,
        source: str = "mixed",
        rate: float = 3.0,
        turned: bool = True,
        late: int = 0,
        **knobs: Any,
    ) -> Path:
        path = tmp_path_factory.mktemp("recordings") / "run.schedtop"
        config = EngineConfig(
            device="sim:llama-3.1-8b@l4",
            workload=WorkloadSpec(source=source, rate=rate),
            scheduler={**PRESSED, **knobs},
        )
        engine = build_engine(config)
        last = None
        for _ in range(late):
            last = engine.step()
        with RecordingWriter(path, engine.header, engine.snapshot) as writer:
            for i in range(num_records):
                if turned:
                    turn(engine, i, last)
                last = engine.step()
                assert last is not None
                writer.write(last)
        return path

    return make


@pytest.fixture(scope="session")
def pressed(record: Record) -> Path:
    """Preemptions, knob changes, aborts, drafts and a pause."""
    return record(num_speculative_tokens=2)


@pytest.fixture
def recording(pressed: Path) -> Iterator[Recording]:
    with Recording(pressed) as opened:
        yield opened
