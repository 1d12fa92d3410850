"""One cohort everywhere: whoever shows, judges or compares a latency says of a life what the definition says of it."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedtop.console.knobs.comparison import changes
from schedtop.console.knobs.comparison import compare as before_and_after
from schedtop.console.past.history import History
from schedtop.console.past.open_latencies import cohorts
from schedtop.console.status import facts
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.cohort import SHARES, Cohort, cohort
from schedtop.engine.contract.reading import itl_column, row_columns
from schedtop.engine.contract.telemetry import Header, Snapshot, StepRecord
from schedtop.engine.decide_again.restore import restore
from schedtop.engine.decide_again.scenario import Scenario
from schedtop.engine.offline.headless import run_headless, step_through
from schedtop.engine.recording import Recording
from schedtop.engine.scheduler.open_latencies import OpenLatencies
from schedtop.engine.serving.slo_watch import WATCH_S, Recent, Watched
from schedtop.engine.whatif.compare import compare
from schedtop.engine.whatif.compared_figures import BY_NAME
from schedtop.engine.whatif.forecast import device_cost, forecast
from schedtop.engine.whatif.rerun import RerunQuestion, rerun
from schedtop.engine.whatif.sweep import sweep

from tests.engine.harness import Script, ask, engine_of

KINDS = ("ttft", "itl")
MICROSECOND_S = 1e-6
"""What a console keeps of a latency."""


def defined(start: Snapshot, records: Iterable[StepRecord], now_s: float, from_s: float = 0.0) -> dict[str, Cohort]:
    """The definition, request by request: what became known after `from_s`, and what is open at `now_s`."""
    arrived_s = {item.arrival.number: item.arrival.arrival_s for item in start.requests}
    last_s = {item.arrival.number: item.last_token_s for item in start.requests if item.last_token_s is not None}
    known: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for record in records:
        arrived_s |= {arrival.number: arrival.arrival_s for arrival in record.arrivals}
        if record.end_s >= from_s:
            known["ttft"] += [ttft_s for _, ttft_s in record.ttft_s]
            known["itl"] += itl_column(record).tolist()
        rows = row_columns(record)
        for number, emitted in zip(rows["request"].tolist(), rows["emitted"].tolist(), strict=True):
            if emitted:
                last_s[number] = record.end_s
        for gone in (*record.finishes, *record.refusals):
            arrived_s.pop(gone.number, None)
            last_s.pop(gone.number, None)
    waits = [now_s - at_s for number, at_s in arrived_s.items() if number not in last_s]
    gaps = [now_s - at_s for at_s in last_s.values() if at_s < now_s]
    return {"ttft": cohort(known["ttft"], waits), "itl": cohort(known["itl"], gaps)}


def documents(found: Mapping[str, Cohort]) -> dict[str, Any]:
    return {f"{kind}_s": found[kind].document() for kind in KINDS}


def near(members: Cohort, wanted: Cohort) -> bool:
    """Equal but for what a console rounds away."""
    mine, theirs = members.document(), wanted.document()
    for name in ("mean", *SHARES):
        assert mine[name] == pytest.approx(theirs[name], abs=MICROSECOND_S)
    return all(mine[name] == theirs[name] for name in ("n", "open", "lower_bound"))


LIVES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 999),
        "rate": st.sampled_from([15.0, 60.0]),
        "end_s": st.one_of(st.none(), st.floats(0.05, 1.0)),
        "max_num_seqs": st.sampled_from([2, 8]),
        "max_num_batched_tokens": st.sampled_from([16, 2048]),
        "num_blocks": st.sampled_from([16, 200]),
        "async_scheduling": st.booleans(),
    }
)


def config_of(life: Mapping[str, Any]) -> EngineConfig:
    """Ten short requests, to their end or cut off at `end_s`."""
    knobs = {name: value for name, value in life.items() if name not in ("seed", "rate", "end_s")}
    workload = WorkloadSpec(
        source="mixed",
        seed=life["seed"],
        rate=life["rate"],
        limit=10,
        max_prompt_tokens=120,
        max_output_tokens=12,
    )
    return EngineConfig(
        device="sim:llama-3.1-8b@h100", workload=workload, scheduler=knobs, duration_s=life["end_s"]
    )


@settings(max_examples=settings().max_examples // 2)
@given(LIVES)
def test_runs_comparisons_and_consoles_agree(life: dict[str, Any]) -> None:
    config = config_of(life)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "life.rec")
        run = run_headless(msgspec.structs.replace(config, record=path), None, lambda line: None).as_dict()
        with Recording(path) as recording:
            header, start = recording.header, recording.keyframe_before(0)[0]
            records = list(recording.records())
        if not records:
            return
        again = rerun(RerunQuestion(path=path, changes={"watermark": 0.1}))
    wanted = documents(defined(start, records, run["clock_s"]))
    assert {key: run[key] for key in wanted} == wanted
    compared_runs_agree(config, wanted if life["end_s"] is None else None)

    at_the_end = defined(start, records, records[-1].end_s)
    for row in again.rows:
        if row.name.partition("_")[0] in KINDS:
            text = BY_NAME[row.name].text(documents(at_the_end))
            assert row.recorded == text, row.name
            assert row.base == text or again.unfinished, row.name
    consoles_agree(header, start, records, at_the_end)


def compared_runs_agree(config: EngineConfig, wanted: dict[str, Any] | None) -> None:
    """What-if and sweep: their runs serve all who arrived, so an end is one of arrivals alone."""
    scenario = Scenario(config)
    swept = sweep(scenario, {"watermark": [0.0, 0.1]}, None)
    base = compare(scenario, {"watermark": 0.1}).base
    if wanted is None:
        engine = scenario.pinned().build()
        start = engine.snapshot()
        wanted = documents(defined(start, scenario.pinned().records(engine), base["clock_s"]))
    for document in (base, swept.documents[swept.base]):
        assert document is not None
        assert {key: document[key] for key in wanted} == wanted


def consoles_agree(
    header: Header, start: Snapshot, records: list[StepRecord], wanted: Mapping[str, Cohort]
) -> None:
    """The latency panel, fleets, and `status`."""
    history = History()
    for message in (header, start, *records):
        history.apply(message)
    shown = cohorts(history, history.now(), 3600.0)
    reported = facts(history, [], {})["latency"]
    for kind in KINDS:
        assert near(shown[kind], wanted[kind]), kind
        for name in ("n", "open"):
            assert reported[kind][name] == wanted[kind].document()[name]


@given(LIVES, st.floats(0.05, 0.5), st.floats(0.1, 1.0))
def test_a_forecast_agrees(life: dict[str, Any], from_s: float, horizon_s: float) -> None:
    """From a moment of a life on, nobody else arriving."""
    config = msgspec.structs.replace(config_of(life), duration_s=from_s)
    engine = build_engine(config)
    for _ in step_through(engine, config):
        pass
    snapshot = engine.snapshot()
    snapshot = msgspec.structs.replace(snapshot, knobs={**snapshot.knobs, "rate": 0.0})
    until_s = snapshot.clock_s + horizon_s
    found = forecast(engine.header, snapshot, {}, horizon_s=horizon_s, replicas=1)
    beside = restore(engine.header, snapshot, device_cost(engine.header), ())
    records = list(step_through(beside, EngineConfig(duration_s=until_s)))
    now_s = max([until_s, *(record.end_s for record in records)])
    wanted = documents(defined(snapshot, records, now_s))
    for name in ("ttft_p50_s", "ttft_p95_s", "itl_p50_s", "itl_p95_s"):
        value = found.base[name].value
        assert value == (None if (known := BY_NAME[name].of(wanted)) is None else pytest.approx(known)), name


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30), st.integers(1, 40)), min_size=12, max_size=40),
    st.integers(1, 40),
    st.integers(10, 50),
)
def test_changes_and_trials_agree(asks: list[tuple[float, int, int]], budget: int, at_step: int) -> None:
    """A step takes half a second; a knob is turned at one of them."""
    source = Script(
        [ask(f"{place:02}", n, outputs, arrival_s=at_s) for place, (at_s, n, outputs) in enumerate(sorted(asks))]
    )
    engine = engine_of(source=source, num_blocks=400, max_num_batched_tokens=40)
    history, start, recent, records = History(), engine.snapshot(), Recent(), []
    history.apply(engine.header)
    history.apply(start)
    for index in range(2 * at_step):
        if index == at_step:
            engine.set_knobs({"max_num_batched_tokens": budget}, by="key")
        record = engine.step()
        if record is None:
            break
        records.append(record)
        history.apply(record)
        recent.take(record)
    trial_agrees(recent, engine.unended(), records, engine.clock_s)
    known = changes(history)
    if not known:
        return
    found = before_and_after(history, known[0], known)
    second = math.floor(known[0].clock_s)
    sides = {"before": (1, second), "after": (second + 1, math.floor(records[-1].end_s))}
    for side, (from_s, to_s) in sides.items():
        part = [record for record in records if record.end_s < to_s]
        if from_s >= to_s or not part:
            continue
        wanted = defined(start, part, part[-1].end_s, from_s)
        for figure in found.figures:
            kind = figure.name.split()[0].lower()
            if kind in KINDS and figure.share is not None:
                bound = wanted[kind].quantile(figure.share)
                assert getattr(figure, f"{side}_n") == wanted[kind].n + wanted[kind].num_open
                if (value := getattr(figure, side)) is not None:
                    assert bound is not None and value == pytest.approx(1e3 * bound.least, abs=1e-3)
                    assert figure.bounds[side == "after"] == bound.is_bound


def trial_agrees(recent: Recent, unended: OpenLatencies, records: list[StepRecord], now_s: float) -> None:
    """It judges the last seconds, and of those still open the ones that are past the bound."""
    nobody = OpenLatencies(np.zeros(0), np.zeros(0))
    bound_s = 0.4
    said = Watched("ttft", bound_s, Recent(), nobody, now_s).breach(now_s, recent, unended)
    lately = [ttft_s for record in records if record.end_s >= now_s - WATCH_S for _, ttft_s in record.ttft_s]
    judged = cohort(lately, unended.ttft[unended.ttft > bound_s])
    p95 = judged.quantile(0.95)
    broken = p95 is not None and judged.n + judged.num_open >= 20 and p95.least > bound_s
    assert bool(said) == broken
    if broken:
        assert p95 is not None
        reported = re.match(r"TTFT p95 ([\d.]+) (m?s)", said)
        assert reported is not None
        assert float(reported[1]) / (1000 if reported[2] == "ms" else 1) == pytest.approx(p95.least, rel=5e-3)
