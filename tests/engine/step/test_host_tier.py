"""The host's memory behind the pool: prefixes come back from it, loads take time, fail or not, and books balance."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedtop.console.past.state import LiveState
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.reading import row_matrix
from schedtop.engine.contract.telemetry import ROW_FIELDS, FinishReason, Snapshot, StepRecord
from schedtop.engine.decide_again.branch import Fork
from schedtop.engine.decide_again.restore import make_request, recorded_builder, restore
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.recording.reader import Recording
from schedtop.engine.recording.writer import RecordingWriter
from schedtop.engine.sim.host_store import LATENCY_S
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.describe import describe_arrival
from schedtop.engine.step.engine import Engine

TOKENS = ROW_FIELDS.index("tokens")
HOST = {"kv_host_memory_bytes": "8GiB"}
BLOCK_BYTES = 16 * 32 * 2 * 8 * 128 * 2
LINK_BYTES_S = 64e9 * 0.8


def engine_with(**scheduler: Any) -> Engine:
    return build_engine(EngineConfig(workload=None, scheduler={"num_blocks": 300, **HOST, **scheduler}))


def ask(name: str, prompt: int, first: int, outputs: int = 4) -> Request:
    return Request(name, np.arange(first, first + prompt, dtype=np.int32), outputs)


def serve(engine: Engine, *requests: Request) -> list[StepRecord]:
    """Every record until nothing is in flight, and no copy either."""
    for request in requests:
        engine.submit(request)
    records = []
    while engine.num_unfinished or engine.next_wake_s() is not None:
        record = engine.step()
        engine.scheduler.audit()
        if record is not None:
            records.append(record)
    return records


def cached(records: list[StepRecord]) -> list[tuple[int, int]]:
    return [(entry.cached_tokens, entry.external_tokens) for record in records for entry in record.admissions]


def test_what_the_pool_evicted_is_loaded_in_the_time_that_the_link_takes() -> None:
    engine = engine_with()
    serve(engine, ask("a", 3200, 0))
    serve(engine, ask("b", 4600, 50_000))  # takes all but a few blocks, those of a
    begun_s = engine.clock_s
    records = serve(engine, ask("c", 3200, 0))
    ((found, external),) = cached(records)
    assert found == 3184 and external > 2500
    admitted_s = next(record.start_s for record in records if record.admissions)
    assert admitted_s - begun_s == pytest.approx(LATENCY_S + external // 16 * BLOCK_BYTES / LINK_BYTES_S, rel=0.02)
    deferrals = [deferral.reason for record in records for deferral in record.deferrals]
    assert deferrals == ["remote_kv", ""]


def test_blocks_are_kept_until_they_are_copied() -> None:
    engine = engine_with()
    engine.submit(ask("a", 3200, 0))
    while engine.num_unfinished:
        record = engine.step()
    assert record is not None and record.finishes and record.host_blocks[3] == 1
    assert record.blocks.held == 200 + 1
    engine.step()
    assert engine.scheduler.state.kv.pool.num_free == 300
    assert engine.tier is not None and engine.tier.used_blocks == 200


def test_nothing_is_loaded_without_need() -> None:
    engine = engine_with()
    assert cached(serve(engine, ask("a", 3200, 0), ask("b", 100, 90_000)))[0] == (0, 0)
    assert cached(serve(engine, ask("c", 3200, 0))) == [(3184, 0)]


def test_the_longest_unused_goes_first() -> None:
    engine = engine_with(kv_host_memory_bytes=150 * BLOCK_BYTES)
    for name, first in (("a", 0), ("b", 10_000), ("c", 20_000)):
        serve(engine, ask(name, 1600, first))
    assert engine.tier is not None and engine.tier.used_blocks == 150
    fresh = [ask(name, 1600, first) for name, first in (("c", 20_000), ("a", 0))]
    assert [engine.tier.tokens(_keyed(engine, request), 0) for request in fresh] == [1584, 0]


def _keyed(engine: Engine, request: Request) -> Request:
    from schedtop.engine.kv.prefix_cache import extend_keys

    extend_keys(request, request.num_prompt_tokens // 16, 16)
    return request


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("policy", "failed"), [("recompute", False), ("fail", True)])
def test_failed_loads_are_computed_or_end_their_requests(policy: str, failed: bool, overlap: bool) -> None:
    config = EngineConfig(
        workload=WorkloadSpec(source="shared-prefix", rate=20.0, limit=40, scale=0.3),
        scheduler={
            "num_blocks": 210,
            **HOST,
            "kv_load_failure_rate": 0.5,
            "kv_load_failure_policy": policy,
            "async_scheduling": overlap,
        },
    )
    engine = build_engine(config)
    records = []
    while not engine.exhausted:
        if (record := engine.step()) is not None:
            records.append(record)
        if len(records) % 10 == 0:
            engine.scheduler.audit()
    engine.scheduler.audit()
    totals = engine.observer.totals()
    reasons = [finish.reason for record in records for finish in record.finishes]
    assert len(reasons) == 40 == totals.finished + totals.failed
    assert (FinishReason.ERROR in reasons) is failed is (totals.failed > 0)
    assert engine.scheduler.state.kv.pool.num_free == 210


def test_hits_by_tier_add_up_and_more_memory_has_more() -> None:
    def run(memory: str) -> dict[str, Any]:
        config = EngineConfig(
            workload=WorkloadSpec(source="shared-prefix", rate=20.0, limit=60, scale=0.3),
            scheduler={"num_blocks": 270, "kv_host_memory_bytes": memory},
        )
        return run_headless(config, None, lambda line: None).as_dict()

    none, some, much = run("0"), run("80MiB"), run("16GiB")
    assert "hits_by_tier" not in none
    for document in (some, much):
        tiers = document["hits_by_tier"]
        assert tiers["pool"] + tiers["host"] == pytest.approx(document["hit_rate"])
    assert much["hit_rate"] > some["hit_rate"] >= none["hit_rate"] - 0.02
    assert much["hits_by_tier"]["host"] > some["hits_by_tier"]["host"]
    assert much["tokens"]["scheduled"] < none["tokens"]["scheduled"]


def test_a_swapped_request_computes_nothing_again() -> None:
    def run(mode: str) -> tuple[dict[str, Any], list[StepRecord]]:
        workload = WorkloadSpec(source="pressure", rate=12.0, limit=20, scale=0.2)
        engine = build_engine(
            EngineConfig(workload=workload, scheduler={"num_blocks": 150, **HOST, "preemption_mode": mode})
        )
        records = []
        while not engine.exhausted:
            if (record := engine.step()) is not None:
                records.append(record)
            if len(records) % 10 == 0:
                engine.scheduler.audit()
        return {"recomputed": engine.observer.totals().recomputed_tokens}, records

    recomputed, _ = run("recompute")
    swapped, records = run("swap")
    preemptions = [entry for record in records for entry in record.preemptions]
    assert preemptions and all(entry.swapped for entry in preemptions)
    assert swapped["recomputed"] == 0 < recomputed["recomputed"]
    back = [entry for record in records for entry in record.admissions if entry.resumed]
    assert len(back) == len(preemptions)
    assert sum(entry.cached_tokens for entry in back) == sum(entry.lost_tokens for entry in preemptions)


def test_a_step_that_only_waits_for_results_is_no_step() -> None:
    """Who must give way itself, with a token under way, is preempted a step later, of which nothing else is told."""
    engine = engine_with(num_blocks=40, policy="priority", async_scheduling=True)
    low, high = ask("low", 326, 0, 60), ask("high", 289, 1000, 60)
    low.priority = 5
    engine.submit(low)
    while not engine.scheduler.state.table.size:
        engine.step()
    records = serve(engine, high)
    (self_made,) = [entry for record in records for entry in record.preemptions if entry.number == entry.for_number]
    assert self_made.number == low.number
    executed = [record for record in records if record.executed]
    assert all(row_matrix(record)[TOKENS].any() or record.preemptions for record in executed)


def test_an_aborted_load_gives_everything_back() -> None:
    engine = engine_with()
    serve(engine, ask("a", 3200, 0))
    serve(engine, ask("b", 4600, 50_000))
    engine.submit(ask("c", 3200, 0))
    engine.step()
    snapshot = engine.snapshot()
    assert snapshot.waiting == [2] and snapshot.requests[0].deferred == "remote_kv"
    assert engine.abort(2)
    serve(engine)
    assert engine.scheduler.state.kv.pool.num_free == 300 and not engine.num_unfinished


def again(engine: Engine) -> Engine:
    """Another engine, from a snapshot that was on its way through a file."""
    assert isinstance(engine.worker, SimWorker)
    reported = msgspec.msgpack.encode(engine.snapshot())
    return restore(engine.header, msgspec.msgpack.decode(reported, type=Snapshot), engine.worker.cost)


def as_recorded(engine: Engine, request: Request) -> Request:
    """What an engine that was restored gets in the place of `request`."""
    arrival = msgspec.structs.replace(describe_arrival(_keyed(engine, request), 16), number=9)
    return make_request(recorded_builder(engine.header), arrival, 16)


def test_what_the_memory_holds_is_in_a_snapshot() -> None:
    engine = engine_with()
    serve(engine, ask("a", 3200, 0))
    serve(engine, ask("b", 4600, 50_000))
    restored = again(engine)
    assert restored.tier is not None and engine.tier is not None
    assert restored.tier.used_blocks == engine.tier.used_blocks
    ((found, external),) = cached(serve(restored, as_recorded(engine, ask("c", 3200, 0))))
    assert found == external == 3184


def test_a_snapshot_of_what_went_on_from_one_is_that_one() -> None:
    engine = engine_with()
    serve(engine, ask("a", 3200, 0))
    serve(engine, ask("b", 4600, 50_000))
    engine.submit(ask("d", 640, 90_000, outputs=9))
    engine.step()
    restored = again(engine)
    reported, retold = engine.snapshot(), restored.snapshot()
    assert retold.host == reported.host and reported.host is not None and reported.host.keys
    assert [item.arrival for item in retold.requests] == [item.arrival for item in reported.requests]
    third = again(restored)
    serve(third)
    assert cached(serve(third, as_recorded(engine, ask("c", 3200, 0)))) == [(3184, 3184)]
    assert again(third).snapshot().host == third.snapshot().host


def test_a_load_in_a_snapshot_goes_on() -> None:
    engine = engine_with()
    serve(engine, ask("a", 3200, 0))
    serve(engine, ask("b", 4600, 50_000))
    engine.submit(ask("c", 3200, 0))
    engine.step()
    restored = again(engine)
    assert restored.snapshot().waiting == [2] and restored.snapshot().requests[0].deferred == "remote_kv"
    one, other = serve(engine), serve(restored)
    assert cached(one) == cached(other) != []
    assert [record.end_s for record in one if record.executed] == [
        record.end_s for record in other if record.executed
    ]


def test_a_swapped_request_of_a_snapshot_is_brought_back() -> None:
    workload = WorkloadSpec(source="pressure", rate=12.0, limit=20, scale=0.2)
    settings = {"num_blocks": 150, **HOST, "preemption_mode": "swap"}
    engine = build_engine(EngineConfig(workload=workload, scheduler=settings))
    while (record := engine.step()) is None or not record.preemptions:
        pass
    restored = again(engine)
    records = serve(restored)
    back = [entry for record in records for entry in record.admissions if entry.resumed]
    assert back and restored.observer.totals().recomputed_tokens == 0
    restored.scheduler.audit()


@pytest.mark.parametrize(
    ("steps", "policy", "swap"),
    [(3, "fail", False), (30, "recompute", True), (50, "fail", True), (80, "recompute", False)],
)
def test_any_moment_can_be_gone_on_from(steps: int, policy: str, swap: bool) -> None:
    settings = {
        "num_blocks": 120,
        **HOST,
        "kv_load_failure_rate": 0.3,
        "kv_load_failure_policy": policy,
        "preemption_mode": "swap" if swap else "recompute",
    }
    workload = WorkloadSpec(source="shared-prefix", rate=20.0, limit=12, scale=0.3)
    engine = build_engine(EngineConfig(workload=workload, scheduler=settings))
    for _ in range(steps):
        engine.step()
    restored = again(engine)
    restored.scheduler.audit()
    served = sum(len(record.finishes) for record in serve(restored))
    restored.scheduler.audit()
    assert served == engine.num_unfinished


SETTINGS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([300, 700]),
        "kv_host_memory_bytes": st.sampled_from(["100MB", "8GiB"]),
        "kv_load_failure_rate": st.sampled_from([0.0, 0.3]),
        "kv_load_failure_policy": st.sampled_from(["recompute", "fail"]),
        "preemption_mode": st.sampled_from(["recompute", "swap"]),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
    }
)
ACTS = st.dictionaries(st.integers(0, 400), st.sampled_from(["abort", "knob", "pause"]), max_size=12)


@settings(max_examples=settings().max_examples // 5)
@given(SETTINGS, st.sampled_from(["shared-prefix", "pressure"]), st.sampled_from([1.0, 20.0]), ACTS)
def test_a_recording_is_decided_again_whatever_was_asked_of_it(
    scheduler: dict[str, Any], source: str, rate: float, acts: dict[int, str]
) -> None:
    workload = WorkloadSpec(source=source, rate=rate, limit=20, scale=0.3)
    engine = build_engine(EngineConfig(workload=workload, scheduler=scheduler))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.rec"
        with RecordingWriter(path, engine.header, engine.snapshot) as writer:
            for turn in range(4000):
                if engine.paused:
                    engine.resume("test")
                act(engine, acts.get(turn, ""))
                if (record := engine.step()) is not None:
                    writer.write(record)
                if engine.exhausted:
                    break
        with Recording(path) as recording:
            verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == engine.observer.step > 0


def act(engine: Engine, what: str) -> None:
    live = list(engine.scheduler.state.requests)
    if what == "abort" and live:
        engine.abort(live[len(live) // 2])
    if what == "knob":
        engine.set_knobs({"max_num_batched_tokens": 3000 - engine.knobs["max_num_batched_tokens"]})
    if what == "pause":
        engine.pause("test")


def test_what_clients_may_have_sent_again_is_said_instead_of_a_difference(tmp_path: Any) -> None:
    """Outputs have no identity in a recording: a prompt that holds them finds more than can be known."""
    engine = engine_with()
    path = tmp_path / "run.rec"
    with RecordingWriter(path, engine.header, engine.snapshot) as writer:
        first = ask("a", 320, 0, outputs=65)
        for record in serve(engine, first):
            writer.write(record)
        again = Request("b", first.sequence(), 4, client_wait_s=0.1)
        for record in serve(engine, again):
            writer.write(record)
    with Recording(path) as recording, pytest.raises(RecordingError, match="clients may have sent outputs again"):
        verify_recording(recording)


def recorded(path: Path, late: int = 0) -> Engine:
    """A run recorded from a step on, and another engine like it."""
    workload = WorkloadSpec(source="shared-prefix", rate=6.0, limit=20)
    config = EngineConfig(workload=workload, scheduler={"num_blocks": 900, **HOST})
    engine = build_engine(config)
    for _ in range(late):
        engine.step()
    with RecordingWriter(path, engine.header, engine.snapshot) as writer:
        while not engine.exhausted:
            if (record := engine.step()) is not None:
                writer.write(record)
    return build_engine(config)


def test_a_recording_goes_on_from_any_of_its_steps_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    engine = recorded(path)
    assert isinstance(engine.worker, SimWorker)
    with Recording(path) as recording:
        index = recording.num_records // 2
        fork = Fork(recording, index, engine.worker.cost, 0)
        rest = serve(fork.engine())
        reported = [record for record in recording.records(index + 1) if record.executed]
    assert fork.notes == []
    ran = [record for record in rest if record.executed]
    assert [(record.rows, record.end_s) for record in ran] == [(record.rows, record.end_s) for record in reported]
    assert sum(entry.external_tokens for record in ran for entry in record.admissions) > 0


def test_where_it_began_late_the_memory_is_that_of_a_snapshot(tmp_path: Path) -> None:
    """On one clock with its copies: on another, they would never end."""
    path, state = tmp_path / "run.rec", LiveState()
    engine = recorded(path, late=40)
    assert isinstance(engine.worker, SimWorker)
    with Recording(path) as recording:
        state.start_afresh(recording.keyframe_before(0)[0])
        index = recording.num_records // 2
        for record in recording.records(0, index + 1):
            state.apply(record)
        fork = Fork(recording, index, engine.worker.cost, 0, state.snapshot())
        forked = fork.engine()
    assert "the state is taken from a snapshot" in fork.notes[0]
    unserved = forked.num_unfinished + len(fork.arrivals)
    assert sum(len(record.finishes) for record in serve(forked)) == unserved > 0


@pytest.mark.parametrize(
    ("device", "scheduler", "reported"),
    [
        ("sim:llama-3.1-8b@h100", {"preemption_mode": "swap"}, "preemption_mode=swap: there is no host memory"),
        ("sim:llama-3.1-8b@h100", {"kv_host_memory_bytes": 1000}, "must be at least 2097152"),
        ("sim:llama-3.1-8b@h100", {"kv_host_memory_bytes": "1x"}, "must be bytes, as in 500MB"),
        ("sim:gpt-oss-20b@h100", HOST, "windows beside full attention: set disable_hybrid"),
        ("cpu", HOST, "--kv-host-memory: only for simulated devices"),
    ],
)
def test_what_cannot_be_is_refused(device: str, scheduler: dict[str, Any], reported: str) -> None:
    model = None if device.startswith("sim") else "smollm2"
    with pytest.raises(ConfigError, match=reported):
        build_engine(EngineConfig(device=device, model=model, workload=None, scheduler=scheduler))
