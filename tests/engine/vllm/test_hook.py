"""The hook must never hurt the server it is in, and changes nothing that it was not asked to."""

from __future__ import annotations

import queue
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from schedtop.engine.vllm.limits import set_limits
from schedtop.engine.vllm.plugin import hooked, wrap_choice, wrap_core

from tests.engine.vllm.drive import Run
from tests.engine.vllm.stub import VERSIONS, PauseState, Request, scheduler_of


def test_the_entry_point_does_nothing_and_imports_nothing_unless_asked() -> None:
    code = (
        "import sys; from schedtop.engine.vllm.plugin import register; register();"
        "unwanted = ('schedtop.engine.vllm.h', 'numpy', 'msgspec', 'vllm');"
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env={}, check=True)
    assert found.stdout.strip() == "[]"


def test_without_vllm_an_address_is_one_line_in_the_log() -> None:
    code = "import sys; sys.modules['vllm'] = None;from schedtop.engine.vllm.plugin import register; register()"
    environment = {"SCHEDTOP_ATTACH": "unix:/nowhere/x.sock"}
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment)
    assert found.returncode == 0
    assert found.stderr.startswith("schedtop: no console can attach:") and found.stderr.count("\n") == 1


def decisions(scheduler: Any, requests: int = 10) -> list[Any]:
    """What a scheduler decides about some requests that do not all fit."""
    for place in range(requests):
        scheduler.add_request(Request(f"r{place}", 9 + 3 * place, 20))
    decided = []
    while scheduler.requests:
        output = scheduler.schedule()
        outputs = scheduler.update_from_output(output)
        ends = [item.request_id for item in outputs[0].outputs if item.finish_reason is not None]
        decided.append((dict(output.num_scheduled_tokens), output.scheduled_cached_reqs.new_block_ids, ends))
    return decided


@pytest.mark.parametrize("version", VERSIONS)
def test_decisions_are_the_same_with_the_hook(version: str) -> None:
    assert decisions(Run(version, num_blocks=27).scheduler) == decisions(scheduler_of(version, num_blocks=27)())


class Broken:
    """Reads as nothing of what a scheduler output has."""


@pytest.mark.parametrize("version", VERSIONS)
def test_three_errors_turn_the_hook_off_and_the_scheduler_runs_alone(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(version, num_blocks=27)
    for _ in range(3):
        assert not run.hook.off
        run.hook.after_schedule(Broken(), 0.0)
    assert run.hook.off.startswith("off after 3 errors, the last: AttributeError")
    assert caplog.text.count("the server runs on without a console") == 1
    assert decisions(run.scheduler) == decisions(scheduler_of(version, num_blocks=27)())
    assert not run.hook.log
    assert "get_new_blocks" not in vars(run.scheduler.kv_cache_manager.block_pool)


def test_an_error_within_a_call_of_the_pool_is_not_the_schedulers() -> None:
    """A block of a shape that only the hook stumbles over."""
    run = Run("0.32")
    block = SimpleNamespace(ref_cnt=1)
    for _ in range(3):
        run.scheduler.kv_cache_manager.block_pool.touch([block])
    assert block.ref_cnt == 4
    assert run.hook.off.startswith("off after 3 errors")


def test_notes_that_nobody_takes_turn_the_hook_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedtop.engine.vllm.hook.MAX_UNREAD", 20)
    run = Run("0.32")
    assert decisions(run.scheduler) == decisions(scheduler_of("0.32")())
    assert run.hook.off == "off: 20 notes wait unread"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lower_cap_drains_and_is_never_below_what_runs(version: str) -> None:
    """vLLM asserts that no more run than `max_num_running_reqs`; the stub does, too."""
    run = Run(version, num_blocks=200, max_num_seqs=6)
    for place in range(12):
        run.add(f"r{place}", 4, 10 + place)
    for _ in range(4):
        run.step()
    assert run.records[-1].running == 6
    run.hook.commands.append(lambda hook: set_limits(hook, {"max_num_seqs": 2}, "test"))
    run.run_out()
    running = [record.running for record in run.records[4:] if record.head is not None and not record.finishes]
    assert running[0] == 6 and min(running) == 2 and running == sorted(running, reverse=True)
    change = next(change for record in run.records for change in record.knobs)
    assert (change.name, change.old, change.new, change.by) == ("max_num_seqs", 6, 2, "test")
    assert run.records[-1].totals.finished == 12


def test_limits_take_effect_before_the_next_step() -> None:
    run = Run("0.32", budget=16)
    run.add("long", 100, 1)
    run.step()
    run.hook.commands.append(lambda hook: set_limits(hook, {"max_num_scheduled_tokens": 5}, ""))
    run.step()
    assert (run.records[-1].scheduled_tokens, run.records[-1].token_budget) == (5, 5)
    assert [change.new for change in run.records[-1].knobs] == [5]
    values = {"max_num_batched_tokens": 8, "max_num_scheduled_tokens": None, "watermark": 0.1}
    run.hook.commands.append(lambda hook: set_limits(hook, values, ""))
    run.step()
    assert (run.records[-1].scheduled_tokens, run.records[-1].input_budget) == (8, 8)
    assert run.records[-1].blocks.watermark == 4


def test_a_limit_that_cannot_be_set_is_told_and_changes_nothing() -> None:
    run = Run("0.11")
    run.add("one", 4, 4)
    run.hook.commands.append(lambda hook: set_limits(hook, {"num_blocks": 5}, ""))
    run.step()
    assert run.maker.errors == ["a limit could not be set (ValueError: num_blocks cannot be set here)"]
    assert run.records[-1].knobs == () and not run.hook.errors


def test_a_pause_is_ours_alone_to_take_back() -> None:
    run = Run("0.32")
    run.hook.pause(True)
    assert run.scheduler.pause_state is PauseState.PAUSED_NEW
    run.add("waits", 4, 4)
    record = run.tell()
    assert record is not None and record.paused
    assert (record.limiter, record.head.reason) == ("paused", "paused")
    run.hook.pause(False)
    assert run.scheduler.pause_state is PauseState.UNPAUSED
    run.scheduler.set_pause_state(PauseState.PAUSED_ALL)  # somebody else's, say before a weight update
    run.hook.pause(True)
    run.hook.pause(False)
    assert run.scheduler.pause_state is PauseState.PAUSED_ALL


def test_an_abort_tells_the_client_and_names_the_console() -> None:
    run = Run("0.32")
    reported: list[str] = []
    run.hook.enter(
        type(
            "Core",
            (),
            {"_send_abort_outputs": lambda self, ended: reported.extend(request.request_id for request in ended)},
        )()
    )
    run.add("one", 4, 40, sampling_params=type("Params", (), {"stop": ["\n"]})())
    run.step()
    run.hook.commands.append(lambda hook: hook.abort("one"))
    run.hook.obey()
    record = run.tell()
    assert record is not None and [finish.reason for finish in record.finishes] == ["abort"]
    assert reported == ["one"] and not run.scheduler.requests


def test_what_a_version_lacks_is_named() -> None:
    assert Run("0.32").hook.facts.missing == []
    old = Run("0.11").hook.facts
    assert old.missing == [
        "a lower max_num_seqs is set again before each step",
        "admissions cannot be paused",
        "preemptions do not give lost tokens or the beneficiary",
        "the full-sequence check cannot be changed",
        "there is no watermark",
    ]
    assert "watermark" not in old.knobs and "watermark" in Run("0.32").hook.facts.knobs


def test_a_scheduler_without_steps_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        pass

    assert hooked(Other) is Other
    assert "has no schedule and update_from_output" in caplog.text


def test_plugin_and_flag_together_wrap_once() -> None:
    base = scheduler_of("0.32")

    class Config:
        def get_scheduler_cls(self) -> type:
            return base

    wrap_choice(Config)
    once = Config.get_scheduler_cls
    wrap_choice(Config)
    assert Config.get_scheduler_cls is once
    picked = Config().get_scheduler_cls()
    assert issubclass(picked, base) and picked is not base
    assert hooked(picked) is picked


def test_a_message_to_an_idle_engine_carries_out_commands() -> None:
    class Core:
        def __init__(self, scheduler: Any) -> None:
            self.scheduler, self.input_queue = scheduler, queue.Queue()

        def run_busy_loop(self) -> None:
            while not self.input_queue.empty():
                self._handle_client_request(self.input_queue.get())

        def _handle_client_request(self, request: Any) -> None:
            pass

    wrap_core(Core)
    run = Run("0.32")
    core = Core(run.scheduler)
    core.input_queue.put("wake up")
    done: list[str] = []
    run.hook.commands.append(lambda hook: done.append("paused"))
    core.run_busy_loop()
    assert done == ["paused"] and run.hook.core is core
