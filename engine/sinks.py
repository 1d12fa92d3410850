"""Where records go beside the consoles: a recording, the metrics page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from schedtop.engine.channel.protocol import Sink
from schedtop.engine.config import EngineConfig
from schedtop.engine.engine import Engine


def open_sinks(
    config: EngineConfig, engine: Engine, stack: ExitStack, notice: Callable[[str], None]
) -> dict[str, Sink]:
    """The sinks that `config` asks for, by name; `stack` closes them. Raises `ConfigError` or `OSError`."""
    sinks: dict[str, Sink] = {}
    if config.record is not None:
        from schedtop.engine.recording.writer import RecordingWriter

        writer = RecordingWriter(config.record, engine.header, engine.snapshot)
        sinks["recording"] = stack.enter_context(writer)
    if config.metrics_port is not None:
        from schedtop.engine.metrics import start_metrics

        metrics = start_metrics(config.metrics_port, engine.header)
        sinks["metrics"] = stack.enter_context(metrics)
        notice(f"metrics at {metrics.url}")
    return sinks
