"""Advice that was measured: values of a finding's knobs, forecast from the present state; Enter stages one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from links import PlayedLink
from scenes import Run, serve
from schedtop.console.app import ConsoleApp
from schedtop.console.explain.finding import Advice
from schedtop.console.explain.tries import Tries, judged, values_of
from schedtop.console.knobs.forecast import Forecaster
from schedtop.console.knobs.staged import Staging
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.history import History
from schedtop.console.replay.app import ReplayApp
from schedtop.console.screens.explain import ExplainScreen
from schedtop.engine.contract.config import WorkloadSpec
from schedtop.engine.recording import Recording
from schedtop.engine.whatif.forecast import Estimate, Forecast, forecast
from seat import WIDE, Clock, Operator
from test_command import recorded
from test_screen import Seat, taken_in


@cache
def capped() -> Run:
    return serve(WorkloadSpec(source="mixed", rate=8.0, seed=3), 20, max_num_seqs=8)


def measured(header: Any, snapshot: Any, staged: Mapping[str, Any], recent: Any) -> Forecast:
    return forecast(header, snapshot, staged, recent=recent, horizon_s=2.0, replicas=2)


def staging_of(run: Run) -> Staging:
    history = History()
    for message in run.messages:
        history.apply(message)
    return Staging(history)


@pytest.mark.parametrize(
    ("knob", "direction", "values"),
    [
        ("max_num_seqs", "up", [12, 16, 32]),
        ("max_num_seqs", "down", [6, 4, 2]),
        ("max_num_seqs", "back to 128", [128]),
        ("watermark", "up", [0.02, 0.05, 0.1]),
        ("watermark", "down", []),
        ("enable_prefix_caching", "off", [False]),
        ("long_prefill_token_threshold", "on (0 is off)", [256, 1024]),
    ],
)
def test_values_lie_in_the_direction_of_the_advice(knob: str, direction: str, values: list[Any]) -> None:
    assert values_of(Advice(knob, direction), staging_of(capped())) == values


def test_what_a_value_would_do_is_said_and_weighed() -> None:
    def side(ttft_s: float, preemptions: float) -> dict[str, Estimate]:
        return {"ttft_p50_s": Estimate(ttft_s, 0.0), "preemptions": Estimate(preemptions, 0.0)}

    found = Forecast(
        horizon_s=10.0,
        replicas=2,
        rate=1.0,
        base=side(20.0, 10),
        staged=side(10.0, 2),
        change=side(-10.0, -8),
        warnings=[],
    )
    tried = judged("watermark", 0.05, found)
    assert tried.words == "TTFT p50 20.0 s→10.0 s, preemptions 10.0→2.0"
    assert tried.gain == pytest.approx(0.5)


def test_the_first_values_are_known_while_others_are_worked_out() -> None:
    go_on, reported = threading.Semaphore(1), threading.Semaphore(0)

    def slowly(*_: Any) -> Forecast:
        go_on.acquire()
        same = {"ttft_p50_s": Estimate(1.0, 0.0)}
        return Forecast(horizon_s=10.0, replicas=1, rate=1.0, base=same, staged=same, change=same, warnings=[])

    staging = staging_of(capped())
    tries = Tries(Forecaster(staging.history, slowly, reported.release), staging)
    finding = capped().findings()["ttft-sequence-cap"]
    assert tries.found(finding) is None
    for _ in range(2):  # none yet, and the first value
        reported.acquire()
    found = tries.found(finding)
    assert found is not None and len(found.tried) == 1 and tries.left(finding) == 2
    go_on.release(2)
    for _ in range(2):
        reported.acquire()
    found = tries.found(finding)
    assert found is not None and len(found.tried) == 3 and not tries.left(finding)


def test_what_could_not_be_forecast_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that was just joined has seen too few steps, a minute later it has not."""
    monkeypatch.setattr("schedtop.console.knobs.forecast.AGAIN_AFTER_S", 0.0)
    same, reported, answers = {"ttft_p50_s": Estimate(1.0, 0.0)}, threading.Semaphore(0), 0

    def later(*_: Any) -> Forecast:
        nonlocal answers
        answers += 1
        if answers < 3:
            raise ValueError(f"only {answers} steps were seen")
        return Forecast(horizon_s=10.0, replicas=1, rate=1.0, base=same, staged=same, change=same, warnings=[])

    forecaster, staged = Forecaster(staging_of(capped()).history, later, reported.release), {"max_num_seqs": 2}
    forecaster.want(staged)
    for expected in ("only 1 steps were seen", "only 2 steps were seen"):
        reported.acquire()
        while forecaster.busy:
            threading.Event().wait(0.001)
        assert forecaster.found(staged) == expected
    reported.acquire()
    assert isinstance(forecaster.found(staged), Forecast)
    assert answers == 3


async def explained(make_forecast: Any) -> tuple[ConsoleApp, list[str]]:
    """The Explain screen on a sequence cap far too low: as it stands once all has been tried, then after Enter."""
    link, clock = PlayedLink(capped().messages), Clock()
    app = ConsoleApp(link, ConsoleOptions(theme="dark"), now=clock, make_forecast=make_forecast)
    async with app.run_test(size=WIDE) as pilot:
        await taken_in(pilot, link)
        seat = Seat(app, pilot, clock)
        await seat.later(4)
        texts = [await seat.press("x")]
        for _ in range(400):
            if "working out" not in texts[0]:
                break
            await pilot.pause(0.05)
            texts[0] = await seat.later(1)
        await seat.press("tab")
        while app.screen.why.tried() is None and app.screen.why.line < len(texts[0]):  # type: ignore[attr-defined]
            line = app.screen.why.line  # type: ignore[attr-defined]
            await seat.press("down")
            if app.screen.why.line == line:  # type: ignore[attr-defined]
                break
        texts.append(await seat.press("enter"))
    return app, texts


async def test_what_helps_is_shown_best_first_and_enter_stages_it() -> None:
    app, (text, after) = await explained(measured)
    lines = [line for line in text.splitlines() if "max_num_seqs" in line and "→" in line]
    assert lines and "TTFT p95" in lines[0], text
    assert "staged max_num_seqs" in after
    assert app.staging.staged["max_num_seqs"] in (12, 16, 32)


async def test_a_recording_is_tried_from_the_shown_step_and_enter_stages_a_re_run(tmp_path: Path) -> None:
    with Recording(recorded(capped(), tmp_path / "capped.rec")) as source:
        app = ReplayApp(source, ConsoleOptions(theme="dark"), paused=True, make_forecast=measured)
        async with app.run_test(size=WIDE) as pilot:
            operator = Operator(app, pilot)
            app.jumps.go("end")
            text = await operator.press("x")
            while "working out" in text:
                await pilot.pause(0.02)
                text = await operator.press("g")
            lines = [line for line in text.splitlines() if "max_num_seqs" in line and "→" in line]
            assert lines, text
            screen = app.screen
            assert isinstance(screen, ExplainScreen)
            await operator.press("tab")
            while screen.why.tried() is None:
                await operator.press("down")
            assert "r runs it from this step" in await operator.press("enter")
            assert app.staging.staged["max_num_seqs"] in (12, 16, 32)


async def test_none_is_shown_where_none_helps() -> None:
    def useless(*_: Any) -> Forecast:
        same = {"ttft_p50_s": Estimate(1.0, 0.0)}
        none = {"ttft_p50_s": Estimate(0.0, 0.0)}
        return Forecast(horizon_s=10.0, replicas=1, rate=1.0, base=same, staged=same, change=none, warnings=[])

    app, (text, _) = await explained(useless)
    assert "none of these helps: max_num_seqs 12" in text
    assert not app.staging.staged


async def test_without_a_forecaster_the_knob_and_its_direction_stand_alone() -> None:
    _, (text, _) = await explained(None)
    assert "max_num_seqs up (now 8)" in text and "working out" not in text
