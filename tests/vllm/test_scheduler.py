"""vLLM's scheduler, without a model: what the hook says about it is what it decided, and what this project decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.recording import Recording, RecordingWriter
from schedtop.engine.recording.frames import RecordingError
from schedtop.engine.vllm.changes import with_consequences
from schedtop.engine.vllm.engine import fixed_of
from schedtop.engine.vllm.hook import Hook
from schedtop.engine.vllm.limits import set_limits
from schedtop.engine.vllm.plugin import hooked
from schedtop.engine.vllm.records.records import Records

from benchmarks.vllm_scheduler import Requests, answer, build
from tests.vllm.conftest import MODEL
from tests.vllm.random_run import LateRun, RandomRun

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = ["abort", "active", "basic", "headroom", "longprefill", "midprompt", "mix", "modellen", "nochunk"]
CASES += ["prefix", "pressure", "watermark"]
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_active_seqs", "policy")
LIMITS += ("watermark", "scheduler_reserve_full_isl", "long_prefill_token_threshold", "enable_chunked_prefill")
LIMITS += (
    "long_prefill_token_threshold_adaptive",
    "block_size",
    "num_blocks",
    "enable_prefix_caching",
    "max_model_len",
)


class Run:
    """One golden case through a hooked scheduler of vLLM's."""

    def __init__(self, case: dict[str, Any], path: Path) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        limits = {name: case["config"][name] for name in LIMITS if name in case["config"]}
        with pytest.MonkeyPatch.context() as patch:  # no thread: what the hook notes is taken here
            patch.setattr("schedtop.engine.vllm.plugin._begin", Hook)
            self.scheduler = build(MODEL, hooked(Scheduler), **limits)
        self.hook: Hook = self.scheduler.schedtop_hook
        facts = self.hook.facts
        self.records = Records(facts.header, facts.knobs, fixed_of(facts.header))
        self.writer = RecordingWriter(str(path), facts.header, lambda: self.records.snapshot(0.0))
        self._case, self._requests = case, Requests(self.scheduler)

    def go(self) -> None:
        step, arrivals = 0, sorted(enumerate(self._case["requests"]), key=lambda item: item[1]["arrival_step"])
        while arrivals or self.scheduler.requests:
            self._outside(step)
            while arrivals and arrivals[0][1]["arrival_step"] <= step:
                self._arrive(*arrivals.pop(0), step)
            for abort in self._case.get("aborts", ()):
                if abort["step"] == step:
                    self._abort(abort["id"])
            if self.scheduler.requests:
                output = self.scheduler.schedule()
                self.scheduler.update_from_output(output, answer(self.scheduler, output))
            self._take()
            step += 1
        self.writer.close()

    def _outside(self, step: int) -> None:
        for change in self._case.get("knobs", ()):
            if change["step"] == step:
                set_limits(self.hook, with_consequences(change["set"]), "case")

    def _arrive(self, place: int, request: dict[str, Any], step: int) -> None:
        prompt = [
            (seed * 1000003 + i * 7919) % 32000 for seed, length in request["prompt_parts"] for i in range(length)
        ]
        more = {"priority": request.get("priority", 0), "arrival_time": step + place * 1e-6}
        self.scheduler.add_request(self._requests.make(request["id"], prompt, request["max_tokens"], **more))

    def _abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _take(self) -> None:
        while self.hook.log:
            record = self.records.take(self.hook.log.popleft())
            if record is not None:
                self.writer.write(record)
        assert not self.hook.errors


@pytest.mark.parametrize("name", CASES)
def test_a_recording_of_vllms_scheduler_is_decided_alike(name: str, tmp_path: Path) -> None:
    """Rows, admissions, preemptions with victim and beneficiary, the head's reason, block ids, all of it."""
    case = json.loads((GOLDEN / f"{name}-1-0.json").read_text())
    run = Run(case, tmp_path / "case.rec")
    run.go()
    with Recording(tmp_path / "case.rec") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.admissions >= len(case["requests"]) - len(case.get("aborts", ()))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("overlaps", [False, True])
def test_whatever_happens_is_decided_alike(overlaps: bool, drafts: int, seed: int, tmp_path: Path) -> None:
    """Arrivals, aborts between a schedule and its results, knobs, pauses; overlapping steps, drafts."""
    run = RandomRun(seed, tmp_path / "run.rec", overlaps, drafts)
    run.go()
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0


@pytest.mark.parametrize("seed", range(10))
def test_a_pooling_model_is_decided_alike(seed: int, tmp_path: Path) -> None:
    run = RandomRun(seed, tmp_path / "run.rec", overlaps=False, pooling=True)
    run.go()
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0


def test_a_pooling_model_under_asynchronous_scheduling_is_refused_by_name(tmp_path: Path) -> None:
    run = RandomRun(0, tmp_path / "run.rec", overlaps=True, pooling=True)
    run.go()
    with (
        Recording(tmp_path / "run.rec") as recording,
        pytest.raises(RecordingError, match="a pooling model under asynchronous scheduling"),
    ):
        verify_recording(recording)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("windows", [(None,), (48,), (None, 32)])
def test_a_drafter_with_a_cache_of_its_own_is_decided_alike(
    windows: tuple[int | None, ...], overlaps: bool, seed: int, tmp_path: Path
) -> None:
    """Its header says what EAGLE asks of the blocks."""
    run = RandomRun(seed, tmp_path / "run.rec", overlaps, 3, windows, "eagle")
    run.go()
    with Recording(tmp_path / "run.rec") as recording:
        config, verdict = recording.header.config, verify_recording(recording)
    asked = (config["drop_last_cached_block"], config["num_lookahead_tokens"], config["prefill_lookahead"])
    assert asked == (True, 3, 1)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("windows", [(48,), (None, 32, 64)])
def test_windows_and_several_groups_are_decided_alike(
    windows: tuple[int | None, ...], overlaps: bool, drafts: int, seed: int, tmp_path: Path
) -> None:
    run = RandomRun(seed, tmp_path / "run.rec", overlaps, drafts, windows)
    run.go()
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
        grown = [record.grown_groups for record in recording.records() if record.grown]
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps > 0
    assert {group for groups in grown for group in groups} == (set() if len(windows) == 1 else {0, 1, 2})


@pytest.mark.parametrize("seed", range(8))
def test_a_recording_that_begins_late_is_decided_from_there(seed: int, tmp_path: Path) -> None:
    run = LateRun(seed, tmp_path / "run.rec", overlaps=False)
    run.go()
    assert run.recorded
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps == recording.num_steps - verdict.first_step > 0 and verdict.first_step


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("overlaps", "drafts"), [(True, 0), (False, 3), (True, 3)])
def test_a_late_recording_with_steps_under_way_or_drafts_is_decided_once_nobody_was_there(
    overlaps: bool, drafts: int, seed: int, tmp_path: Path
) -> None:
    run = LateRun(seed, tmp_path / "run.rec", overlaps, drafts, pauses=True)
    run.go()
    assert run.recorded
    with Recording(tmp_path / "run.rec") as recording:
        verdict = verify_recording(recording)
    assert verdict.equal, str(verdict.difference)
    assert verdict.steps > 0 and verdict.first_step
