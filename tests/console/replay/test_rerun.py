"""Running a recording again as an operator does: stage, run, look at both, go where they part, give up, be refused."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rerun_here import Here
from schedtop.console.cli.main import main
from schedtop.console.cli.rerun_process import RerunError, RerunProcess, beginner
from schedtop.console.options import ConsoleOptions
from schedtop.console.replay.app import ReplayApp
from schedtop.console.replay.rerun.screen import RerunScreen
from schedtop.console.screens.help import HelpScreen
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Snapshot
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.whatif.rerun import RerunQuestion, rerun
from seat import COMPACT, WIDE, Operator
from textual.pilot import Pilot


class Endless:
    """A run that goes on until it is given up."""

    def __init__(self) -> None:
        self.given_up = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield "running both", 0.25
        self.given_up.wait()
        raise RerunError("given up")

    def cancel(self) -> None:
        self.given_up.set()


class Seat(Operator):
    """An operator before a replay that can be run again; `asked` are the questions so far."""

    def __init__(self, app: ReplayApp, pilot: Pilot[None], asked: list[RerunQuestion]) -> None:
        super().__init__(app, pilot)
        self.asked = asked

    async def until(self, holds: Callable[[], bool]) -> str:
        """Wait, however long it takes here."""
        while not holds():
            await self.pilot.pause(0.02)
        await self.settle()
        self.app.paint()
        await self.settle()
        return self.text

    async def outcome(self) -> str:
        """Wait for the end of the run."""
        return await self.until(lambda: self.app.reruns.doing is None and isinstance(self.app.screen, RerunScreen))

    async def go(self, step: int) -> None:
        with self.app.history.lock:
            self.app.player.move(self.app.player.history.source.index_of_step(step))
        self.app.paint()
        await self.pilot.pause()

    async def stage(self, name: str, value: str) -> str:
        """Type a value for a knob in its panel."""
        await self.press("6", "g")
        names = [knob.name for knob in self.app.staging.live_knobs()]
        await self.press(*["down"] * names.index(name), "equals_sign")
        self.app.live_screen.prompt.value = value
        return await self.press("enter")

    @property
    def step(self) -> int:
        return self.app.history.live.step

    def panels(self) -> dict[str, list[str]]:
        """Every panel of the replay's screen, as text."""
        with self.app.history.lock:
            self.app.view.look()
            return {
                name: ["".join(piece for piece, _ in line.pieces) for line in panel.lines(100, 14)]
                for name, panel in self.app.live_screen.panels.items()
                if name != "knobs"
            }


@asynccontextmanager
async def seated(
    source: Recording, size: tuple[int, int] = WIDE, begin: Any = None, **settings: Any
) -> AsyncIterator[Seat]:
    asked: list[RerunQuestion] = []

    def here(changes: Mapping[str, Any], index: int | None, snapshot: Snapshot | None) -> Here:
        asked.append(RerunQuestion(path=source.path, changes=dict(changes), index=index, snapshot=snapshot))
        return Here(asked[-1])

    options = ConsoleOptions(**({"theme": "dark", "embedded": False} | settings))
    app = ReplayApp(source, options, lambda: 50.0, paused=True, rerun=here if begin is None else begin)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Seat(app, pilot, asked)


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short requests: every question to a recording runs all of it again, twice, until all are served."""
    path = tmp_path_factory.mktemp("brief") / "run.schedtop"
    workload = WorkloadSpec(source="mixed", rate=3.0, scale=0.3)
    scheduler = {"max_num_seqs": 16, "num_blocks": 160, "num_speculative_tokens": 2, "max_model_len": 2048}
    engine = build_engine(EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload, scheduler=scheduler))
    with RecordingWriter(path, engine.header, engine.snapshot) as writer:
        for _ in range(360):
            record = engine.step()
            assert record is not None
            writer.write(record)
    return path


@pytest.fixture
def recording(brief: Path) -> Iterator[Recording]:
    with Recording(brief) as opened:
        yield opened


async def test_from_a_step_on_and_back(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.go(300)
        assert "→2*" in await seat.stage("max_num_seqs", "2")
        before = seat.panels()
        await seat.press("enter")
        text = await seat.outcome()
        assert seat.asked[0].index == seat.app.history.position and seat.asked[0].changes == {"max_num_seqs": 2}
        assert "recorded" in text and "re-run with max_num_seqs" in text
        for name in ("tokens", "step", "KV", "run/wait", "TTFT", "ITL", "recorded", "re-run"):
            assert any(line.startswith(name) for line in text.splitlines())
        for name in ("E2E p99", "throughput", "preemptions", "recomputed tokens", "hit rate", "budget use"):
            assert name in text
        assert "it is the recording, step for step" in text and "worse" in text
        divergence = seat.app.reruns.outcome.divergence  # type: ignore[union-attr]
        assert divergence is not None and f"step {divergence.step}" in text

        await seat.press("escape")
        assert seat.app.screen is seat.app.live_screen and seat.step == 300
        assert seat.panels() == before
        assert "Both runs" in await seat.press("v")


async def test_all_lanes_begin_with_the_first_step_that_is_run_again(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.go(150)
        await seat.stage("max_num_seqs", "2")
        await seat.press("r")
        await seat.outcome()
        screen, outcome = seat.app.screen, seat.app.reruns.outcome
        assert isinstance(screen, RerunScreen) and outcome is not None and outcome.divergence is not None
        assert outcome.divergence.step > 150 and outcome.exact
        for _ in range(5):
            grid = screen.timeline.grid(screen.both.size.width)
            first, other = (screen.timeline.filled(run.ladder, grid)[0] for run in screen.timeline.runs)
            assert first is not None and other is not None and first.begin_s == other.begin_s
            await seat.press("minus", "g")


async def test_too_small_says_what_is_needed_and_comes_back(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.go(300)
        await seat.stage("max_num_seqs", "2")
        await seat.press("enter")
        before = await seat.outcome()
        await seat.pilot.resize_terminal(59, 11)
        await seat.settle()
        assert "schedtop needs 60x12" in seat.text and "this terminal is 59x11" in seat.text
        await seat.pilot.resize_terminal(60, 12)
        await seat.settle()
        assert "needs" not in seat.text and "Both runs" in seat.text and "Esc back" in seat.text
        await seat.pilot.resize_terminal(*WIDE)
        await seat.settle()
        assert seat.text == before


async def test_where_the_cursor_stands_is_told_at_any_size(recording: Recording) -> None:
    async with seated(recording, size=(60, 15)) as seat:
        await seat.go(300)
        await seat.stage("max_num_seqs", "2")
        await seat.press("r")
        assert " at " in (await seat.outcome()).splitlines()[1]


async def test_the_first_difference_is_one_key_away_and_leads_to_its_step(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.go(300)
        await seat.stage("max_num_seqs", "2")
        await seat.press("r")
        await seat.outcome()
        outcome = seat.app.reruns.outcome
        assert outcome is not None and outcome.divergence is not None
        await seat.press("G")
        assert f"runs diverge at step {outcome.divergence.step}" in await seat.press("d")
        text = await seat.press("enter")
        assert seat.app.screen is seat.app.live_screen and seat.step == outcome.divergence.step
        assert "v shows the re-run again" in text
        await seat.press("v")
        await seat.press("enter")
        assert seat.app.screen is seat.app.live_screen and seat.step == outcome.divergence.step


async def test_a_chosen_moment_leads_to_what_was_recorded_then(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.stage("watermark", "0.2")
        await seat.press("b")
        await seat.outcome()
        assert seat.asked[0].index is None and seat.asked[0].snapshot is None
        view, screen = seat.app.view, seat.app.screen
        assert isinstance(screen, RerunScreen)
        assert "10 s" in await seat.press("g", "minus", "minus", *["right"] * 30)
        begin_s, end_s = screen.timeline.span
        moment_s = view.cursor_s
        assert moment_s is not None and begin_s < moment_s < end_s == begin_s + 10.0
        assert " all " in await seat.press("z")
        assert screen.timeline.span == screen.timeline.extent() and view.cursor_s == moment_s
        await seat.press("enter")
        record = view.moment.record
        assert record is not None and record.start_s <= moment_s <= record.end_s


async def test_from_the_start_settings_of_the_start_can_be_changed(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.go(100)
        await seat.stage("policy", "priority")
        assert "policy can only be set at start-up: b re-runs from the start" in await seat.press("r")
        assert not seat.asked
        await seat.press("b")
        assert "re-run with policy fcfs→priority" in await seat.outcome()
        assert seat.asked[0].index is None


async def test_no_change_is_said(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.stage("max_num_active_seqs", "16")
        await seat.press("r")
        text = await seat.outcome()
        assert "no change: all 359 steps are the same" in text
        assert "every step is the same" in await seat.press("d")
        assert "worse" not in text and "better" not in text


async def test_refused_values_name_their_bounds_and_are_not_staged(recording: Recording) -> None:
    async with seated(recording) as seat:
        text = await seat.stage("watermark", "0.9")
        assert "must be at most 0.5" in text and "0.9" in text
        await seat.press("escape")
        assert "stage a change first" in await seat.press("r")
        assert not seat.asked and not seat.app.staging.staged


def test_a_run_that_goes_on_past_the_recording_says_so(brief: Path) -> None:
    reported: list[str] = []
    rerun(RerunQuestion(path=brief, changes={"max_num_seqs": 8}), on_progress=lambda what, _: reported.append(what))
    assert reported.index("running both") < reported.index(
        "running both, now past the end of the recording, until all are served"
    )
    assert reported[-1] != "running both"


async def test_esc_gives_up_and_the_replay_is_as_it_was(recording: Recording) -> None:
    run = Endless()
    async with seated(recording, begin=lambda *question: run) as seat:
        await seat.go(40)
        await seat.stage("watermark", "0.2")
        await seat.press("r")
        text = await seat.until(lambda: seat.app.reruns.doing == ("running both", 0.25))
        assert "25%" in text and "Esc cancels" in text and "watermark=0.2 from step 40" in text
        assert "d difference" not in text and seat.app.screen.why_not("moment_parting") == "no re-run yet"  # type: ignore[attr-defined]
        await seat.press("escape")
        assert run.given_up.is_set() and seat.app.reruns.doing is None
        assert seat.app.screen is seat.app.live_screen and seat.step == 40
        assert seat.app.staging.staged == {"watermark": 0.2}
        assert "no re-run yet" in await seat.press("v")


async def test_why_there_is_no_outcome_is_one_line(recording: Recording) -> None:
    class Failing(Endless):
        def __iter__(self) -> Iterator[Any]:
            raise RerunError("the recording begins at step 5 of its engine")

    async with seated(recording, begin=lambda *question: Failing()) as seat:
        await seat.stage("watermark", "0.2")
        await seat.press("b")
        text = await seat.outcome()
        assert "Re-run failed" in text and "the recording begins at step 5 of its engine" in text
        await seat.press("escape")
        assert seat.app.screen is seat.app.live_screen


async def test_an_older_outcome_stays_while_a_new_run_is_given_up(recording: Recording) -> None:
    runs: list[Any] = []

    def begin(changes: Mapping[str, Any], index: int | None, snapshot: Snapshot | None) -> Any:
        question = RerunQuestion(path=recording.path, changes=dict(changes), index=index, snapshot=snapshot)
        runs.append(Here(question) if not runs else Endless())
        return runs[-1]

    async with seated(recording, begin=begin) as seat:
        await seat.stage("watermark", "0.2")
        await seat.press("r")
        await seat.outcome()
        await seat.press("escape")
        await seat.stage("watermark", "0.4")
        await seat.press("r", "escape")
        assert "watermark 0→0.2" in await seat.press("v")


async def test_from_the_knobs_screen(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.press("K", "j", "j", "minus")
        assert "1 staged" in seat.text and "re-run" in seat.text.splitlines()[-1]
        await seat.press("enter")
        await seat.outcome()
        assert seat.asked[0].changes == {"max_num_seqs": 15}
        await seat.press("escape")
        assert seat.app.screen is seat.app.live_screen


async def test_a_run_that_ends_while_one_looks_elsewhere_says_so(recording: Recording) -> None:
    run = Endless()

    class Later(Here):
        def __iter__(self) -> Iterator[Any]:
            yield "running both", 0.25
            run.given_up.wait()
            yield from super().__iter__()

    def begin(changes: Mapping[str, Any], index: int | None, snapshot: Snapshot | None) -> Later:
        return Later(RerunQuestion(path=recording.path, changes=dict(changes), index=index, snapshot=snapshot))

    async with seated(recording, begin=begin) as seat:
        await seat.stage("watermark", "0.2")
        await seat.press("b", "1")
        assert seat.app.screen is seat.app.live_screen and seat.app.reruns.doing is not None
        run.given_up.set()
        text = await seat.until(lambda: seat.app.reruns.doing is None)
        assert "re-run finished: v shows it" in text
        assert "Both runs" in await seat.press("v")


async def test_one_page_after_the_other_on_a_small_screen(recording: Recording) -> None:
    async with seated(recording, COMPACT) as seat:
        await seat.stage("max_num_seqs", "2")
        await seat.press("b")
        text = await seat.outcome()
        assert "run/wait" in text and "Tab 1 of 3" in text and "TTFT p50" not in text
        assert "TTFT p50" in await seat.press("tab")
        assert "First difference" in await seat.press("tab") and "it is the recording" in seat.text
        assert "Both runs" in await seat.press("tab")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As recorded on a device that is not simulated."""
    path = tmp_path_factory.mktemp("real") / "run.rec"
    workload = WorkloadSpec(source="mixed", rate=3.0, limit=30)
    engine = build_engine(
        EngineConfig(device="sim:llama-3.1-8b@l4", workload=workload, scheduler={"num_blocks": 400})
    )
    header = msgspec.structs.replace(engine.header, device="cpu, 2 threads", simulated_clock=False)
    with RecordingWriter(path, header, engine.snapshot) as writer:
        while not engine.exhausted:
            record = engine.step()
            assert record is not None
            writer.write(record)
    return path


async def test_a_real_device_is_compared_in_simulation_and_this_is_said(real: Path) -> None:
    """Above is the recording run again; `o` puts the recorded run itself there."""
    with Recording(real) as recording:
        async with seated(recording) as seat:
            await seat.stage("max_num_seqs", "3")
            await seat.press("b")
            text = await seat.outcome()
            assert "simulated as recorded" in text and "simulated with max_num_seqs" in text
            assert "recorded on cpu, 2 threads" in text and "off by" in text
            assert "as rec." in text and "changed" in text
            assert "compared with: recorded" in await seat.press("o")


async def test_keys_are_in_help_palette_and_footer(recording: Recording) -> None:
    async with seated(recording) as seat:
        await seat.stage("watermark", "0.2")
        assert "re-run" in seat.text
        await seat.press("r")
        text = await seat.outcome()
        assert "difference" in text.splitlines()[-1] and "show" in text.splitlines()[-1]
        await seat.press("question_mark")
        assert isinstance(seat.app.screen, HelpScreen)
        assert "Re-run from this step" in seat.app.screen.page(100).plain


async def test_ascii_tells_the_runs_apart(recording: Recording) -> None:
    async with seated(recording, theme="monochrome", ascii=True) as seat:
        await seat.stage("max_num_seqs", "2")
        await seat.press("b")
        text = await seat.outcome()
        assert text.isascii()
        assert "- recorded -" in text and "re-run with" in text
        recorded, changed = (part.split("TTFT")[0] for part in text.split("run/wait")[1].split("\nre-run", 1))
        assert "r" in recorded and "w" not in recorded.partition("|")[0] and "w" in changed


async def test_the_process_answers_and_can_be_ended(recording: Recording) -> None:
    begin = beginner(recording.path, "ttft=1s", None)
    async with seated(recording, begin=begin) as seat:
        await seat.stage("max_num_seqs", "2")
        await seat.press("b")
        text = await seat.outcome()
        assert "it is the recording, step for step" in text and "goodput" in text


def test_a_process_that_was_ended_gives_no_outcome(recording: Recording) -> None:
    running = RerunProcess(RerunQuestion(path=recording.path, changes={"watermark": 0.1}))
    running.cancel()
    with pytest.raises(RerunError, match="has ended"):
        list(running)


def test_the_process_tells_what_is_wrong_in_one_line(recording: Recording) -> None:
    with pytest.raises(RerunError) as refused:
        list(RerunProcess(RerunQuestion(path=recording.path, changes={"watermark": 0.9})))
    assert "must be at most 0.5" in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RerunError) as gone:
        list(RerunProcess(RerunQuestion(path=str(tmp_path / "gone.rec"), changes={"watermark": 0.1})))
    assert "gone.rec" in str(gone.value) and "Error" not in str(gone.value)


def test_a_device_for_re_runs_is_checked_before_the_console_opens(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", recording.path, "--device", "sim:llama-3.1-8b@abacus"])
    reported = capsys.readouterr().err
    assert ended.value.code == 2 and "abacus" in reported and len(reported.splitlines()) == 1
