"""A recording as a scenario: its own arrivals, device and knobs, and the changes that were made while it ran."""

from __future__ import annotations

from pathlib import Path

import msgspec
from schedtop.engine.config import ConfigError, EngineConfig
from schedtop.engine.knobs import BY_NAME
from schedtop.engine.recording.reader import Mark, Recording
from schedtop.engine.sim.calibrate import calibrate
from schedtop.engine.sim.fit import FitError
from schedtop.engine.sim.spec import PREFIX, CalibratedDevice, SimDevice
from schedtop.engine.telemetry import Header
from schedtop.engine.whatif.scenario import KnobEvent, Scenario, without_rate

SAME_ENGINE = ("seed", "tensor_parallel_size", "pipeline_parallel_size")
"""Settings of a header that are an engine config's too."""


def recorded_scenario(config: EngineConfig, given: set[str]) -> Scenario:
    """The scenario of the recording that is `config`'s workload; fields and knobs in `given` overrule it.

    A real device without a simulated one given in its place gets step times fitted to the recording itself.
    Raises `ConfigError` (`RecordingError` for the file).
    """
    assert config.workload is not None
    with Recording(config.workload.source) as recording:
        header = recording.header
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
        events = _knob_events(recording, given)
    return Scenario(config_of(header, config, given), device, events, notes=tuple(notes))


def config_of(header: Header, config: EngineConfig, given: set[str]) -> EngineConfig:
    """`config` with the settings of a recorded engine, but for the fields and scheduler settings in `given`."""
    scheduler = {
        name: value
        for name, value in header.config.items()
        if value is not None and name in BY_NAME and name not in given and not name.endswith("_ceiling")
    }
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


def _knob_events(recording: Recording, given: set[str]) -> tuple[KnobEvent, ...]:
    """The changes of limits in the recording but `given` ones, on the clock of its arrivals: the first one is at 0.

    A change of the rate is in the arrivals already.
    """
    zero_s = next((item.arrival_s for record in recording.records() for item in record.arrivals), 0.0)
    events, index = [], recording.find(Mark.KNOB, -1)
    while index is not None:
        record = recording.record(index)
        changes = {change.name: change.new for change in record.knobs if change.name not in given}
        if values := without_rate(changes):
            events.append(KnobEvent(max(record.start_s - zero_s, 0.0), values))
        index = recording.find(Mark.KNOB, index)
    return tuple(events)
