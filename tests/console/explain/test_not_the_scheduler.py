"""No progress, a slow device, an idle one, and time lost at the front end."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from scenes import Run, ask, numbers, serve, stream
from schedtop.console.explain.diagnosis import Diagnosis
from schedtop.console.explain.log import Log, read
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.contract.telemetry import Head, Host, StepRecord
from schedtop.engine.handoff.plan import StepPlan, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine


def answers(count: int = 20) -> list[Request]:
    return [ask(i, 20, 4000) for i in range(count)] + stream(60, 0.25, 100, 2)


def test_a_paused_engine_with_a_queue() -> None:
    served = serve(answers(), 1.5)
    run = Run(served.header, served.snapshot, list(served.records))
    engine = build_engine(EngineConfig(workload=None))
    for request in answers(3):
        engine.submit(request)
    run.records = [record for _ in range(40) if (record := engine.step()) is not None]
    engine.pause()
    engine.submit(ask(99, 50, 5, engine.clock_s))
    told_paused = engine.step()
    assert told_paused is not None
    assert not told_paused.executed
    run.records.append(told_paused)
    finding = run.findings()["no-progress"]
    assert numbers(finding)["paused"] is True
    assert numbers(finding)["waiting"] == told_paused.waiting >= 1
    assert finding.severity.word == "notice"
    assert finding.advice[0].knob == ""
    engine.resume()
    run.records += [record for _ in range(5) if (record := engine.step()) is not None]
    assert "no-progress" not in run.findings()


def test_a_silent_engine_with_work() -> None:
    run = serve(answers(), 2)
    finding = run.findings(silent_s=12.0)["no-progress"]
    assert numbers(finding)["silent_s"] == 12.0
    assert finding.severity.word == "severe"
    assert run.findings(silent_s=1.0) == {}


def test_a_silent_engine_that_never_stepped_has_no_usual_step() -> None:
    """Its first step takes long: what steps take is not known, which is not the same as nothing."""
    engine = build_engine(EngineConfig(workload=None))
    run = Run(engine.header, engine.snapshot())
    engine.pause()
    engine.submit(ask(1, 50, 5))
    reported = engine.step()
    assert reported is not None and not reported.executed and reported.waiting
    run.records.append(msgspec.structs.replace(reported, paused=False, head=None, limiter="none"))
    finding = run.findings(silent_s=12.0)["no-progress"]
    assert numbers(finding)["step_s"] is None
    assert not any("0.0 ms" in link.words for link in finding.links)


def test_an_idle_engine_may_be_silent() -> None:
    run = serve(stream(5, 0.1, 50, 3), 10)
    assert not run.records[-1].running
    assert run.findings(silent_s=60.0) == {}


def test_steps_that_compute_nothing_new() -> None:
    """No engine of ours does this: the records of a real one, made to say so from a step on."""
    run = serve(answers(), 3)

    def stuck(record: StepRecord) -> StepRecord:
        return msgspec.structs.replace(
            record, recomputed_tokens=record.scheduled_tokens, waiting=3, limiter="preempted_now", ttft_s=()
        )

    run.records[-40:] = [stuck(record) for record in run.records[-40:]]
    finding = run.findings()["no-progress"]
    reported = numbers(finding)
    assert reported["steps"] == 40
    assert reported["tokens"] == reported["recomputed_tokens"] == sum(r.scheduled_tokens for r in run.records[-40:])
    run.records[-20:] = serve(answers(), 3).records[-20:]
    assert "no-progress" not in run.findings()


@pytest.mark.parametrize(("waiting", "limiter", "reason"), [(3, "blocks", "blocks"), (0, "none", None)])
def test_a_stuck_engine_names_what_holds_its_queue_if_it_has_one(
    waiting: int, limiter: str, reason: str | None
) -> None:
    run = serve(answers(), 3)
    run.records[-40:] = [
        msgspec.structs.replace(
            record,
            recomputed_tokens=record.scheduled_tokens,
            waiting=waiting,
            limiter=limiter,
            head=Head(99, limiter, need=5, have=1) if waiting else None,
        )
        for record in run.records[-40:]
    ]
    finding = run.findings()["no-progress"]
    assert numbers(finding).get("reason") == reason
    assert any("held by" in link.words for link in finding.links) == (reason is not None)


def test_slow_steps_of_the_same_mix() -> None:
    run = serve(answers(), 10, slow=(50, 4.0))
    finding = run.findings()["slow-device"]
    reported, window = numbers(finding), run.window()
    made_slow = [r for r in window if r.step % 50 == 0]
    assert 0.9 * len(made_slow) <= finding.n <= len(made_slow)
    usual = np.array([r.execute_s * 3 / 4 for r in made_slow])
    assert reported["lost_s"] == pytest.approx(usual.sum(), rel=0.15)
    assert reported["lost_share"] == pytest.approx(reported["lost_s"] / sum(r.execute_s for r in window))
    assert reported["times"] == pytest.approx(4.0, rel=0.25)
    assert {s.first_step % 50 for s in finding.steps} == {0}
    assert finding.advice[0].knob == ""


def test_a_device_that_stays_slow_does_not_fall_silent() -> None:
    """Slow from the tenth second on: long after, a window holds nothing but slow steps."""

    class SlowFrom:
        simulated = True

        def __init__(self, engine: Engine) -> None:
            self.worker, self.clock = engine.worker, engine.clock

        def execute(self, plan: StepPlan) -> StepResult:
            result = self.worker.execute(plan)
            if self.clock.now_s() > 10:
                result.elapsed_s = (result.elapsed_s or 0.0) * 4
            return result

    def slow_down(engine: Engine) -> None:
        if not isinstance(engine.worker, SlowFrom):
            engine.worker = SlowFrom(engine)

    run = serve(stream(15, 2.0, 100, 40), 28, slow_down)
    log = Log(window_s=5.0)
    assert "slow-device" in {entry.finding.id for entry in read(run.messages, log).look()}
    reported = numbers(log.entries["slow-device"].finding)
    assert reported["slow_steps"] > 0.5 * len(run.window(5.0))
    assert reported["times"] == pytest.approx(4.0, rel=0.3)
    words = log.entries["slow-device"].finding.links[1].words
    assert "up to step" in words and "median" in words


def test_steps_slow_for_what_is_in_them_are_silent() -> None:
    assert "slow-device" not in serve(answers(), 10).findings()
    prompts = [ask(i, 20, 4000) for i in range(20)] + stream(60, 0.25, 3000, 2)
    assert "slow-device" not in serve(prompts, 10).findings()


def test_a_device_that_idles_between_steps() -> None:
    def hold_up(engine: Engine) -> None:
        engine.clock.advance(0.01)

    run = serve(answers(), 5, hold_up)
    finding = run.findings()["idle-device"]
    reported, window = numbers(finding), run.window()
    idle_s = sum(b.start_s - a.end_s for a, b in pairwise(window))
    busy_s = sum(r.execute_s for r in window[1:])
    assert reported["idle_share"] == pytest.approx(idle_s / (idle_s + busy_s))
    assert reported["gap_p50_s"] == pytest.approx(0.01)
    assert "idle-device" not in serve(answers(), 5).findings()
    assert "cpu" not in reported, "nothing was told of the host"
    host = Host(1.0, 0.3, 0.6, 0.2, 990, 1980)
    run.records[-1] = msgspec.structs.replace(run.records[-1], host=(host,))
    reported = numbers(run.findings()["idle-device"])
    assert (reported["cpu"], reported["run_delay"], reported["gpu_busy"], reported["gpu_clock"]) == (
        0.3,
        0.6,
        0.2,
        0.5,
    )


def test_gaps_without_work_are_not_idling() -> None:
    run = serve(stream(40, 0.25, 50, 3), 10)
    assert run.findings() == {}


def test_waiting_before_arrival() -> None:
    def run(client_wait_s: float | None) -> Run:
        return serve(stream(100, 0.1, 100, 20, client_wait_s=client_wait_s), 10)

    finding = run(0.3).findings()["front-end"]
    reported = numbers(finding)
    ttft_s = np.median([t for r in run(0.3).window() for _, t in r.ttft_s])
    assert reported["client_wait_p50_s"] == pytest.approx(0.3)
    assert reported["ttft_p50_s"] == pytest.approx(ttft_s)
    assert reported["share"] == pytest.approx(0.3 / (0.3 + ttft_s))
    assert run(0.001).findings() == {}
    assert run(None).findings() == {}


def test_a_diagnosis_of_nothing_finds_nothing() -> None:
    assert Diagnosis().findings() == []
    assert Diagnosis().findings(silent_s=100.0) == []
