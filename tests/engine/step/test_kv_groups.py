"""KV groups of a simulated model, from its layers to what is told of them: books, records, snapshots, hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedtop.console.past.state import LiveState
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.kv_groups import has_windows, kinds_of
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.recording.reader import Recording
from schedtop.engine.step.engine import Engine

OSS = "sim:gpt-oss-20b@h100"


def config(
    source: str = "shared-prefix", scale: float = 1.0, device: str = OSS, limit: int = 20, **scheduler: Any
) -> EngineConfig:
    workload = WorkloadSpec(source=source, rate=12.0, limit=limit, scale=scale)
    return EngineConfig(device=device, workload=workload, scheduler={"num_blocks": 900, **scheduler})


def tables(engine: Engine) -> dict[int, list[list[int]]]:
    state = engine.scheduler.state
    return {
        number: [list(table) for table in state.kv.tables(request)] for number, request in state.requests.items()
    }


@pytest.mark.parametrize("overlap", [False, True])
def test_a_record_tells_what_every_group_holds(overlap: bool) -> None:
    engine = build_engine(config("pressure", 0.2, async_scheduling=overlap, num_blocks=150))
    console = LiveState()
    console.start_afresh(engine.snapshot())
    steps = preemptions = 0
    while (record := engine.step()) is not None and steps < 2500:
        assert isinstance(record, StepRecord)
        console.apply(record)
        steps += 1
        preemptions += len(record.preemptions)
        if steps % 20 and not record.preemptions:
            continue
        held = tables(engine)
        engine.scheduler.state.kv.pool.audit(table for each in held.values() for table in each)
        for group, count in enumerate(record.group_blocks):
            here = [each[group] for each in held.values() if group < len(each)]
            assert count == sum(block >= 0 for table in here for block in table)
        extra = engine.scheduler.state.kv.pool.num_extra_refs
        assert sum(record.group_blocks) - extra == record.blocks.held + record.blocks.shared
        size = engine.scheduler.config.block_size
        assert 0 <= record.blocks.stored_tokens <= (record.blocks.held + record.blocks.shared) * size
    assert preemptions


def test_a_console_knows_each_groups_table_as_a_snapshot_does() -> None:
    # One step at a time: a snapshot has what a planned step takes, which its record has yet to tell.
    engine = build_engine(config(async_scheduling=False))
    console = LiveState()
    console.start_afresh(engine.snapshot())
    for _ in range(120):
        record = engine.step()
        assert record is not None
        console.apply(record)
    snapshot = engine.snapshot()
    assert any(item.further for item in snapshot.requests)
    joined = LiveState()
    joined.start_afresh(snapshot)
    for item in snapshot.requests:
        number = item.arrival.number
        assert [len(table) for table in console.group_tables(number)] == [
            len(table) for table in joined.group_tables(number)
        ]
        # Full attention gives nothing back, so there the ids are the same, too.
        assert console.group_tables(number)[1:] == joined.group_tables(number)[1:]
    assert joined.snapshot().requests[0].further == snapshot.requests[0].further


def test_windows_hold_little_and_full_attention_all() -> None:
    engine = build_engine(config("pressure", limit=3, num_blocks=4000))
    for _ in range(400):
        engine.step()
    for window, full in tables(engine).values():
        assert sum(block >= 0 for block in window) <= -(-128 // 16) + 2
        assert -1 not in full and len(full) == len(window) > 20


def test_a_prefix_is_found_once_two_have_shared_it() -> None:
    """vLLM's retention of 0 keeps the end of a prompt, and of what a second prompt had in common with the first."""
    engine = build_engine(EngineConfig(device=OSS, workload=None, scheduler={"num_blocks": 900}))
    cached = []
    for nth in range(4):
        prompt = np.concatenate([np.arange(3072), np.arange(100) + 10_000 * (nth + 1)]).astype(np.int32)
        engine.submit(Request(f"r-{nth}", prompt, 4))
        records = [record for _ in range(40) if (record := engine.step()) is not None]
        cached += [admission.cached_tokens for record in records for admission in record.admissions]
    assert cached == [0, 0, 3072, 3072]


def test_all_layers_alike_find_it_at_once_and_hold_more() -> None:
    grouped, alike = (
        run_headless(
            config(num_blocks=4000, disable_hybrid_kv_cache_manager=flag), None, lambda line: None
        ).as_dict()
        for flag in (False, True)
    )
    assert alike["hit_rate"] > grouped["hit_rate"] > 0.3
    assert grouped["lost_hits"]["tokens"] == 0


@pytest.mark.parametrize(("device", "overlap"), [(OSS, False), (OSS, True), ("sim:gemma-3-4b@l4", False)])
def test_a_recording_of_groups_is_decided_again(tmp_path: Path, device: str, overlap: bool) -> None:
    path = str(tmp_path / "run.rec")
    settings = config(scale=0.3, device=device, async_scheduling=overlap, num_blocks=750)
    run_headless(
        EngineConfig(device=device, workload=settings.workload, scheduler=settings.scheduler, record=path),
        None,
        lambda line: None,
    )
    with Recording(path) as recording:
        assert verify_recording(recording).equal
        reported = [record.group_blocks for record in recording.records() if record.executed]
        assert all(reported) and {len(blocks) for blocks in reported} == {len(recording.header.config["kv_groups"])}
        assert has_windows(recording.header.config)


def test_kinds_are_named_for_people() -> None:
    header = build_engine(config(device="sim:gemma-3-27b@h200")).header
    assert [(kind.label, kind.groups) for kind in kinds_of(header.config)] == [
        ("full", (6,)),
        ("window 1024", (0, 1, 2, 3, 4, 5)),
    ]
    assert kinds_of({"kv_groups": ["full", 128], "disable_hybrid_kv_cache_manager": True}) == []


def test_a_prompt_that_can_never_fit_is_refused_with_the_need_of_all_groups() -> None:
    engine = build_engine(config("pressure", num_blocks=60, limit=5))
    refusals = [refusal for _ in range(200) if (record := engine.step()) for refusal in record.refusals]
    assert refusals and all(refusal.need is not None and refusal.need > 60 for refusal in refusals)


def test_a_window_beside_the_models_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="sliding_window: the model's own windows hold"):
        build_engine(config(sliding_window=64))
