"""Where records go besides the consoles: a recording, the metrics page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from schedtop.engine.channel.protocol import Sink
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.serving.engine_protocol import Steppable


def check_sinks(config: EngineConfig) -> None:
    """Checks that need nothing loaded. Raises `ConfigError`."""
    if config.record is not None:
        from schedtop.engine.recording import RecordingError, check_new

        try:
            check_new(config.record)
        except RecordingError as error:
            raise ConfigError(str(error)) from None


def open_sinks(
    config: EngineConfig, engine: Steppable, stack: ExitStack, notice: Callable[[str], None]
) -> dict[str, Sink]:
    """The sinks that `config` asks for, by name; `stack` closes them. Raises `ConfigError`.

    A sink that fails later is to be removed from the result.
    """
    sinks: dict[str, Sink] = {}
    if config.metrics_port is not None:
        _open_metrics(config.metrics_port, engine, sinks, stack, notice)
    if config.record is not None:
        _open_recording(config.record, config.record_text, engine, sinks, stack, notice)
    return sinks


def _open_metrics(
    port: int, engine: Steppable, sinks: dict[str, Sink], stack: ExitStack, notice: Callable[[str], None]
) -> None:
    from schedtop.engine.metrics import MetricsError, start_metrics

    try:
        page = start_metrics(port, engine.header)
    except MetricsError as error:
        raise ConfigError(str(error)) from None
    sinks["metrics"] = stack.enter_context(page)
    notice(f"metrics at {page.url}")


def _open_recording(
    path: str,
    keep_text: bool,
    engine: Steppable,
    sinks: dict[str, Sink],
    stack: ExitStack,
    notice: Callable[[str], None],
) -> None:
    from schedtop.engine.recording import RecordingError, RecordingMovedError, RecordingWriter

    try:
        writer = RecordingWriter(path, engine.header, engine.snapshot, keep_text=keep_text, notice=notice)
    except RecordingError as error:
        raise ConfigError(str(error)) from None

    def close() -> None:
        try:
            writer.close()
        except OSError as error:
            if "recording" in sinks:  # otherwise it was reported when it happened
                if not isinstance(error, RecordingMovedError):
                    notice(f"recording is not whole: {error.strerror or error}")
                del sinks["recording"]

    sinks["recording"] = writer
    stack.callback(close)
