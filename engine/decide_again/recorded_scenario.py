"""A recording as a scenario: its arrivals, device and knobs, and the changes made while it ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.contract.telemetry import FinishReason, Header
from schedtop.engine.decide_again.scenario import KnobEvent, Scenario, without_rate
from schedtop.engine.recording.reader import Mark, Recording
from schedtop.engine.sim.calibrate import calibrate
from schedtop.engine.sim.fit import FitError
from schedtop.engine.sim.spec import PREFIX, CalibratedDevice, SimDevice

SAME_ENGINE = ("seed", "tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "step_cost")
"""Settings of a header that are an engine config's too."""

_SIZES_POOL = {"kv_cache_memory_bytes": "--kv-cache-memory", "gpu_memory_utilization": "--gpu-memory-utilization"}


def recorded_scenario(config: EngineConfig, given: set[str]) -> Scenario:
    """The scenario of the recording that is `config`'s workload; fields and knobs in `given` override it.

    A real device, unless replaced by a simulated one, gets step times fitted to the recording itself.
    Raises `ConfigError` (`RecordingError` for the file).
    """
    assert config.workload is not None
    with Recording(config.workload.source) as recording:
        header = recording.header
        for name, flag in _SIZES_POOL.items():
            if name in given:
                raise ConfigError(f"{flag}: the pool of {recording.path} comes in blocks: set --num-blocks")
        notes = [f"{recording.path}: {recording.truncated}"] if recording.truncated else []
        device: SimDevice | None = None
        if "device" in given:
            if not header.simulated_clock:
                notes.append(f"recorded on {header.device}; both runs are simulated on {config.device}")
        elif header.device.startswith(PREFIX):
            config = msgspec.structs.replace(config, device=header.device)
        elif header.simulated_clock:
            raise ConfigError(
                f"{recording.path} was recorded on {header.device!r}: name a --device sim:… to run it on"
            )
        else:
            device, note = _fitted(recording)
            notes.append(note)
            if header.config.get("kv_groups"):
                notes.append("its KV groups are simulated as one that keeps everything: fewer requests fit")
        if header.config.get("num_lookahead_tokens") or header.config.get("drop_last_cached_block"):
            notes.append("its drafter's own cache is not simulated: hits are up to a block longer")
        spec, plain = config.workload, WorkloadSpec()
        same = all(getattr(spec, name) == getattr(plain, name) for name in ("rate", "time_scale", "start_s"))
        events = outside_events(recording, -1, zero_s(recording), given, with_aborts=same)
    return Scenario(config_of(header, config, given), device, events, notes=tuple(notes))


def config_of(header: Header, config: EngineConfig, given: set[str]) -> EngineConfig:
    """`config` with a recorded engine's settings, except the fields and scheduler settings in `given`."""
    scheduler = {
        name: value
        for name, value in header.config.items()
        if value is not None and name in BY_NAME and name not in given and not name.endswith("_ceiling")
    }
    if "async_scheduling" not in given:
        scheduler.setdefault("async_scheduling", False)  # older recordings do not say
    own = {name: header.settings[name] for name in SAME_ENGINE if name in header.settings and name not in given}
    return msgspec.structs.replace(config, scheduler={**scheduler, **config.scheduler}, **own)


def _fitted(recording: Recording) -> tuple[SimDevice, str]:
    try:
        calibration, fitted = calibrate([(recording.header, recording.records())])
    except FitError as error:
        raise ConfigError(
            f"{recording.path} was recorded on {recording.header.device}, and no step times can be fitted to it:"
            f" {error}; or name a simulated --device"
        ) from None
    note = (
        f"recorded on {recording.header.device}; both runs are simulated, with step times fitted to the recording"
        f" (off by {fitted.held_out.p50:.1%} at the median, {fitted.held_out.p95:.1%} at p95)"
    )
    return CalibratedDevice(Path(recording.path), calibration), note


def zero_s(recording: Recording) -> float:
    """When the first request arrived: zero on the clock of the recording's arrivals."""
    return next((item.arrival_s for record in recording.records() for item in record.arrivals), 0.0)


def outside_events(
    recording: Recording, start: int, zero_s: float, given: Iterable[str] = (), *, with_aborts: bool = True
) -> tuple[KnobEvent, ...]:
    """What was done to the engine after record `start`: changes of limits but `given` ones, and aborts.

    Times are from `zero_s` on. A change of the rate is in the arrivals already. Aborts name requests by number, so
    they are of use only where all of them arrive, and when they did.
    """
    found = {index for mark in (Mark.KNOB, Mark.ABORT) for index in _marked(recording, mark, start)}
    events = []
    for record in (recording.record(index) for index in sorted(found)):
        changes = {change.name: change.new for change in record.knobs if change.name not in given}
        aborts = tuple(finish.number for finish in record.finishes if finish.reason == FinishReason.ABORT)
        aborts = aborts if with_aborts else ()
        events.append(KnobEvent(max(record.start_s - zero_s, 0.0), without_rate(changes), aborts))
    return tuple(events)


def _marked(recording: Recording, mark: Mark, index: int) -> Iterator[int]:
    found = recording.find(mark, index)
    while found is not None:
        yield found
        found = recording.find(mark, found)
