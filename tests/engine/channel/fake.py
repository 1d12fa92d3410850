"""A small engine with the real structs: a few requests, two tokens of clock arithmetic, no scheduling."""

from __future__ import annotations

import os
import sys
import time
import types
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract import telemetry as t


def header(**changes: Any) -> t.Header:
    values: dict[str, Any] = {
        "protocol": t.PROTOCOL,
        "engine": "fake",
        "engine_version": "0",
        "model": "none",
        "device": "none",
        "policy": "fcfs",
        "block_size": 16,
        "num_blocks": 1024,
        "max_model_len": 4096,
        "config": {},
        "workload": {},
        "started_at": 0.0,
        "simulated_clock": True,
    }
    return t.Header(**{**values, **changes})


def record(
    seq: int, num_rows: int = 4, executed: bool = True, clock_s: float = 0.0, **changes: Any
) -> t.StepRecord:
    rows = np.zeros((len(t.ROW_FIELDS), num_rows), np.int32)
    rows[0] = np.arange(num_rows)
    rows[1] = rows[6] = 1
    rows[4] = 100 + seq
    rows[5] = 101 + seq
    values: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(t.StepRecord) if field.required}
    values |= {
        "seq": seq,
        "step": seq,
        "executed": True,
        "start_s": clock_s - 0.01,
        "end_s": clock_s,
        "limiter": "none",
        "rows": rows.tobytes(),
        "itl_s": np.full(num_rows, 0.01, np.float32).tobytes(),
        "oldest_wait_s": None,
        "head": None,
        "blocks": t.Blocks(held=8, shared=0, cached_free=0, empty=1016, stored_tokens=100, watermark=0),
        "changed_blocks": b"",
        "grown": b"",
        "grown_blocks": b"",
        "totals": t.Totals(steps=seq, scheduled_tokens=num_rows * seq),
        "scheduled_tokens": num_rows,
        "knobs_version": 1,
        "paused": False,
    }
    values |= dict.fromkeys(
        ("ttft_s", "arrivals", "admissions", "refusals", "finishes", "preemptions", "knobs"), ()
    )
    return t.StepRecord(**{**values, **changes})


def snapshot(seq: int, **changes: Any) -> t.Snapshot:
    values: dict[str, Any] = {
        "seq": seq,
        "step": seq,
        "clock_s": 0.0,
        "requests": [],
        "waiting": [],
        "running": [],
        "block_classes": bytes(1024),
        "knobs": {"max_num_seqs": 8},
        "knobs_version": 1,
        "paused": False,
        "totals": t.Totals(steps=seq, scheduled_tokens=4 * seq),
    }
    return t.Snapshot(**{**values, **changes})


@dataclass
class Outcome:
    ok: bool
    text: str
    knobs_version: int
    warnings: list[str] = field(default_factory=list)


class FakeEngine:
    """Takes `steps` steps of 10 ms (None: for ever), then idles; fails at one; aborting a number below 0 hangs it."""

    def __init__(
        self,
        steps: int | None = None,
        num_rows: int = 4,
        fails_at: int = -1,
        simulated: bool = True,
    ) -> None:
        self.header = header(simulated_clock=bool(simulated))
        self.clock_s = 0.0
        self.paused = False
        self.drained = False
        self.knobs_version = 1
        self.knobs: dict[str, Any] = {"max_num_seqs": 8}
        self.aborted: list[int] = []
        self._left = steps
        self._num_rows = num_rows
        self._fails_at = fails_at
        self._once = False
        self.seq = 0

    @property
    def num_unfinished(self) -> int:
        return 0 if self.drained or self._left == 0 else self._num_rows

    def snapshot(self) -> t.Snapshot:
        return snapshot(
            self.seq,
            knobs=dict(self.knobs),
            knobs_version=self.knobs_version,
            paused=self.paused,
            clock_s=self.clock_s,
        )

    def step(self) -> t.StepRecord | None:
        if self.num_unfinished == 0 or (self.paused and not self._once):
            return None
        if self.seq + 1 == self._fails_at:
            raise RuntimeError("the fake engine was told\nto fail")
        self._once = False
        self.seq += 1
        self.clock_s += 0.01
        if self._left is not None:
            self._left -= 1
        return record(self.seq, self._num_rows, clock_s=self.clock_s, knobs_version=self.knobs_version)

    def tell(self) -> t.StepRecord | None:
        return None

    def next_wake_s(self) -> float | None:
        return None

    def set_knobs(self, values: dict[str, Any], expected_version: int | None, by: str, dry_run: bool) -> Outcome:
        if "nonsense" in values:
            raise ValueError("no knob is called 'nonsense'")
        if expected_version not in (None, self.knobs_version):
            return Outcome(False, "changed meanwhile", self.knobs_version)
        if not dry_run:
            self.knobs_version += 1
            self.knobs |= values
        return Outcome(True, "set", self.knobs_version, ["8 running, cap 3: 5 must finish first"])

    def pause(self, by: str) -> None:
        self.paused = True

    def resume(self, by: str) -> None:
        self.paused = False

    def step_once(self) -> None:
        self._once = True

    def abort(self, number: int) -> bool:
        while number < 0:
            time.sleep(1)
        self.aborted.append(number)
        return number < self._num_rows

    def drain(self) -> None:
        self.drained = True


def main() -> int:
    """The service's `main` with fake engines; `FAKE_ENGINE` holds the constructor's arguments as `name=value`."""
    arguments = {}
    for item in os.environ.get("FAKE_ENGINE", "").split():
        name, _, value = item.partition("=")
        arguments[name] = int(value)
    build = types.ModuleType("schedtop.engine.build")

    def build_engine(config: Any, on_stage: Any) -> FakeEngine:
        on_stage("loading weights")
        if arguments.pop("never_loads", 0):
            sys.stdin.buffer.raw.read(0)
            while True:
                on_stage("loading weights")
        return FakeEngine(**arguments)

    build.build_engine = build_engine  # type: ignore[attr-defined]
    sys.modules["schedtop.engine.build"] = build
    from schedtop.engine.serving.service import main as serve

    return serve([])


if __name__ == "__main__":
    sys.exit(main())
