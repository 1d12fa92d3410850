"""Those still waiting: what the panels know of them is what the engine knows, and no percentile leaves them out."""

from __future__ import annotations

import re

import numpy as np
import pytest
from links import PlayedLink
from schedtop.console.app import ConsoleApp
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.history import History
from schedtop.console.past.open_latencies import cohort_of, unended
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.cohort import cohort
from schedtop.engine.contract.latencies.samples import merge
from schedtop.engine.step.engine import Engine
from seat import WIDE, Clock

from tests.engine.harness import ask, engine_of


def starving() -> Engine:
    """Twelve requests, of which more and more decode, until there are tokens for three of them in a step."""
    engine = engine_of(
        *(ask(f"{place:02}", 6, 40) for place in range(12)), max_num_batched_tokens=20, num_blocks=40
    )
    for _ in range(3):
        engine.step()
    engine.set_knobs({"max_num_batched_tokens": 3})
    return engine


def test_open_latencies_are_those_of_the_engine() -> None:
    engine, history = starving(), History()
    history.apply(engine.header)
    history.apply(engine.snapshot())
    seen = {"ttft": 0, "itl": 0}
    for _ in range(150):
        record = engine.step()
        if record is None:
            break
        history.apply(record)
        found, reported = unended(history.live), engine.unended()
        assert sorted(found["ttft"].tolist()) == pytest.approx(sorted(reported.ttft.tolist()))
        assert sorted(found["itl"].tolist()) == pytest.approx(sorted(reported.itl[reported.itl > 0].tolist()))
        seen = {kind: count + len(found[kind]) for kind, count in seen.items()}
    assert all(seen.values())


def test_a_gap_counts_however_long_ago_it_began() -> None:
    """One token a step: the second request gets none as long as the first one decodes."""
    engine, history = (
        engine_of(
            ask("a", 6, 800), ask("b", 6, 800), max_num_batched_tokens=20, num_blocks=500, max_model_len=1000
        ),
        History(),
    )
    history.apply(engine.header)
    history.apply(engine.snapshot())
    for step in range(700):
        if step == 3:
            engine.set_knobs({"max_num_batched_tokens": 1})
        record = engine.step()
        assert record is not None
        history.apply(record)
    reported = engine.unended().itl
    assert unended(history.live)["itl"].tolist() == pytest.approx(reported[reported > 0].tolist())
    moment = history.at(600)
    assert moment is not None and len(unended(moment.state)["itl"]) == 1
    states = {item.arrival.id: item.last_token_s for item in history.live.snapshot().requests}
    assert states == {item.arrival.id: item.last_token_s for item in engine.snapshot().requests}


def test_a_cohort_of_samples_is_the_one_that_all_others_use() -> None:
    engine, history, known = starving(), History(), []
    history.apply(engine.header)
    history.apply(engine.snapshot())
    for _ in range(60):
        record = engine.step()
        assert record is not None
        history.apply(record)
        known += [ttft_s for _, ttft_s in record.ttft_s]
    moment = history.now()
    open_s = unended(moment.state)["ttft"]
    samples = merge(history.latency_columns("ttft", moment, 3600.0, 100))
    mine, wanted = cohort_of(samples, open_s).document(), cohort(np.array(known), engine.unended().ttft).document()
    for name in ("mean", "p50", "p90", "p95", "p99"):
        assert mine[name] == pytest.approx(wanted[name], abs=1e-6)
    assert {name: mine[name] for name in ("n", "open", "lower_bound")} == {
        name: wanted[name] for name in ("n", "open", "lower_bound")
    }


async def test_the_panel_says_what_those_who_wait_feel() -> None:
    """Ten seconds as it should be, then eight tokens a step: nobody is praised for those who were served before."""
    workload = WorkloadSpec(source="mixed", rate=12.0)
    engine = build_engine(EngineConfig(device="sim:llama-3.1-8b@h100", workload=workload))
    messages = [engine.header, engine.snapshot()]
    while engine.clock_s < 30.0:
        if engine.clock_s >= 10 and not engine.knobs_version:
            engine.set_knobs({"max_num_batched_tokens": 8})
        record = engine.step()
        if record is not None:
            messages.append(record)
    link = PlayedLink(messages)
    options = ConsoleOptions(theme="dark", ttft_slo_s=1.0, itl_slo_s=0.05)
    app = ConsoleApp(link, options, now=Clock())
    async with app.run_test(size=WIDE) as pilot:
        while link.messages:
            await pilot.pause(0.01)
        app.paint()
        await pilot.pause(0.1)
        screen = "\n".join("".join(segment.text for segment in strip) for strip in app.screen_strips())
    (line,) = (line for line in screen.splitlines() if "TTFT  p50" in line and "client" not in line)
    assert re.search(r"p95 >1[67]\.\d!", line) and "n " in line and "+2" in line
    assert "93%" not in screen
