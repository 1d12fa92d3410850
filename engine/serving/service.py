"""The engine's process: `python -m schedtop.engine.serving.service [CONFIG.json]`.

Without an argument the first line of stdin is the `EngineConfig` as JSON, and stdin is the owner's lifeline: when
it ends, the engine drains and exits. Exit codes: 0 orderly end, 1 the engine failed or its recording is not whole and
where it was asked for, 2 a setting cannot be used.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
from schedtop.engine.channel.listen import default_address
from schedtop.engine.channel.protocol import ChannelError, Sink
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.channel.stale_sockets import remove_leftovers
from schedtop.engine.contract.commands import Drain
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.sanitize import one_line
from schedtop.engine.contract.telemetry import Bye, Reply, Stage
from schedtop.engine.serving.engine_protocol import Steppable
from schedtop.engine.serving.flight.files import FlightFiles
from schedtop.engine.serving.flight.recorder import FlightRecorder
from schedtop.engine.serving.host import HostWatch, nvml_gpu
from schedtop.engine.serving.http_process import HttpProcess, start_http
from schedtop.engine.serving.loop import DRAIN_WITHIN_S, ServiceLoop
from schedtop.engine.serving.quiet_exit import leave
from schedtop.engine.serving.sinks import check_sinks, open_sinks
from schedtop.engine.step.garbage import calm_collector

MAX_CONFIG_BYTES = 1 << 20
STAGE_EVERY_S = 0.5
OWNER_GONE = "the console that owned this engine is gone"


class StopLoading(BaseException):
    """Raised by a signal handler to end the loading of a model; not an `Exception`, so that nothing swallows it."""


class EndReasons:
    """Why the process should end: a signal, the loss of its owner, or a command.

    Requests in flight get `drain_within_s` to finish (None: as long as they take, until a second signal).
    """

    def __init__(self, drain_within_s: float | None = DRAIN_WITHIN_S) -> None:
        self.loop: ServiceLoop | None = None
        self._drain_within_s = drain_within_s
        self.code = 0
        self._reason: str | None = None
        self._armed = False
        self._waker, self.wakes = socket.socketpair()
        self._waker.setblocking(False)
        self.wakes.setblocking(False)

    def install(self) -> None:
        """Catch the signals that end a process; each also wakes a `poll` that waits on `wakes`."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that `StopLoading` leaves when the process should end; it sets `loop` last."""
        self._armed = True
        try:
            if self._reason is not None:
                raise StopLoading(self._reason)
            yield
        finally:
            self._armed = False

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Part of an interruptible block that finishes first, so that what it opens is closed."""
        self._armed = False
        yield
        self._armed = True
        if self._reason is not None:
            raise StopLoading(self._reason)

    def end(self, reason: str, code: int = 0) -> None:
        """End the process cleanly with this exit code; callable from any thread."""
        if self._reason is None:
            self._reason, self.code = reason, code
        signal.raise_signal(signal.SIGTERM)

    def tell(self, text: str) -> None:
        """One line for the operator, once the engine serves."""
        if self.loop is not None:
            self.loop.notice("info", text)

    def wake(self) -> None:
        """Make a `poll` that waits on `wakes` return."""
        with suppress(BlockingIOError):
            self._waker.send(b"\0")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._reason is None:
            self._reason = f"the engine got {signal.Signals(number).name}"
        if self.loop is not None:
            self.loop.end(self._reason, self._drain_within_s)
        elif self._armed:
            self._armed = False
            raise StopLoading(self._reason)


class Greeter:
    """Serves the channel from its own thread while the main thread loads, which can take a minute."""

    def __init__(self, server: ChannelServer, life: EndReasons) -> None:
        self._server = server
        self._life = life
        self._started_s = time.monotonic()
        self._stage = "starting"
        self._done = False
        self._thread = threading.Thread(target=self._run, name="greeter", daemon=True)

    def stage(self, name: str) -> None:
        """The current stage."""
        self._stage = name
        self._life.wake()

    def __enter__(self) -> Greeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        self._life.wake()
        self._thread.join()

    def _run(self) -> None:
        while not self._done:
            self._server.stage(Stage(name=self._stage, elapsed_s=time.monotonic() - self._started_s))
            for peer, command in self._server.poll(STAGE_EVERY_S):
                if isinstance(command, Drain):
                    self._life.end("ended on command")
                    text = "ending"
                else:
                    text = f"the engine is still loading ({self._stage}): try again once it serves"
                reply = Reply(command.id, isinstance(command, Drain), text, knobs_version=0)
                self._server.reply(peer, reply)


def read_config(arguments: list[str]) -> tuple[EngineConfig, bool]:
    """The config, and whether stdin is the owner's lifeline. Raises `ConfigError`."""
    if len(arguments) > 1:
        raise ConfigError("usage: python -m schedtop.engine.serving.service [CONFIG.json]")
    try:
        text = Path(arguments[0]).read_bytes() if arguments else _first_line(0)
    except OSError as error:
        raise ConfigError(f"cannot read the engine's config: {error.strerror}: {error.filename}") from None
    try:
        return msgspec.json.decode(text, type=EngineConfig), not arguments
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"the engine's config is not usable: {error}") from None


def _first_line(fd: int) -> bytes:
    """Bytes up to a newline or the end, one by one: the rest stays unread, so that its end can be detected."""
    line = bytearray()
    while len(line) < MAX_CONFIG_BYTES:
        byte = os.read(fd, 1)
        if byte in (b"", b"\n"):
            break
        line += byte
    return bytes(line)


def main(arguments: list[str] | None = None) -> int:
    """Run the engine that the arguments or stdin describe until it ends; returns the exit code."""
    try:
        config, owned = read_config(sys.argv[1:] if arguments is None else arguments)
    except ConfigError as error:
        return _fail(str(error), 2)
    return serve(config, owned)


def serve(config: EngineConfig, owned: bool = False) -> int:
    """Run one engine until it ends; `owned`: the end of stdin means that the owner is gone. Returns the exit code."""
    try:
        server = ChannelServer(
            config.socket or default_address(), token_file=config.token_file, read_only=config.read_only
        )
    except (ConfigError, ChannelError) as error:
        return _fail(str(error), 2)
    if not server.address.startswith("tcp:"):
        remove_leftovers(Path(server.address).parent)
    try:
        http = start_http(config, server.address)
    except ConfigError as error:
        server.close(Bye(reason=str(error), step=0))
        return _fail(str(error), 2)
    life = EndReasons(None if http else DRAIN_WITHIN_S)
    life.install()
    server.watch(life.wakes, lambda: life.wakes.recv(4096))
    if owned:
        _watch_owner(server, life)
    else:
        _log(f"listening on {server.address}")
        _log(server.who_may_connect)
    if http is not None:
        http.watch(server, lambda text: life.tell(f"HTTP at {text}"), lambda why: life.end(f"HTTP: {why}", 1))
    code, reason, step = 0, "", 0
    try:
        with ExitStack() as stack:
            loop, sinks = _load(config, owned, server, life, stack, http)
            try:
                reason = loop.run()
            finally:
                step = loop.last_step
        if config.record is not None and "recording" not in sinks:
            code = 1
    except StopLoading as stop:
        reason = str(stop)
    except ConfigError as error:
        reason, code = str(error), _fail(str(error), 2)
    except MemoryError:
        reason = "not enough memory: give it more, or ask for a smaller model or pool"
        code = _fail(reason, 1)
    except Exception as error:
        with suppress(OSError):
            traceback.print_exc()
        reason = f"the engine failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        code = _fail(reason, 1)
    server.close(Bye(reason=reason, step=step))
    if http is not None:
        http.close()
    if life.code and not code:
        return _fail(reason, life.code)
    return code


def _load(
    config: EngineConfig,
    owned: bool,
    server: ChannelServer,
    life: EndReasons,
    stack: ExitStack,
    http: HttpProcess | None,
) -> tuple[ServiceLoop, dict[str, Sink]]:
    """Build and check everything, cheap checks first; consoles can join meanwhile.

    Returns the loop and its sinks; one that fails is removed from them.
    """
    check_sinks(config)
    notices: list[str] = []

    def tell(line: str) -> None:
        if life.loop is None:
            notices.append(line)  # the channel is the greeter's while it loads
        else:
            life.loop.notice("error", line)

    with Greeter(server, life) as greeter, life.interruptible():

        def stage(name: str) -> None:
            """Report the current stage; once serving, the worker's problems."""
            if life.loop is None:
                greeter.stage(name)
            else:
                life.loop.notice("warning", name)

        engine = _build(config, stage)
        calm_collector()
        # As stages they would vanish before being read.
        notices += getattr(getattr(engine, "worker", None), "notices", ())
        with life.undisturbed():
            sinks = open_sinks(config, engine, stack, tell)
            recorder = FlightRecorder(engine.snapshot, _open_flight(config, engine, stack, tell), tell)
            sinks["flight recorder"] = recorder
            server.recent, server.newest_s = recorder.recent, lambda: recorder.newest_s
            host = _watch_host(engine, stack)
        life.loop = ServiceLoop(
            engine,
            server,
            sinks,
            real_time=config.real_time,
            duration_s=config.duration_s,
            stay=owned or config.workload is None or http is not None,
            notices=notices,
            join_within_s=config.join_within_s,
            for_clients=http is not None,
            on_drain=lambda: None if http is None else http.drain(),
            report=_log,
            host=host,
        )
    return life.loop, sinks


def _watch_host(engine: Steppable, stack: ExitStack) -> HostWatch:
    """Watch the host; its GPU only where the engine runs on one."""
    on_gpu = not engine.header.simulated_clock and engine.header.device.startswith("cuda")
    watch = HostWatch(nvml_gpu) if on_gpu else HostWatch()
    watch.start()
    stack.callback(watch.close)
    return watch


def _open_flight(
    config: EngineConfig, engine: Steppable, stack: ExitStack, tell: Callable[[str], None]
) -> FlightFiles | None:
    """The flight on disk; it stays if the engine fails."""
    if config.flight_folder is None:
        return None
    try:
        files = FlightFiles(Path(config.flight_folder), engine.header)
    except OSError as error:
        tell(f"flight recorder: {error.strerror}: {error.filename}; the last minutes are kept in memory only")
        return None

    def close(kind: type[BaseException] | None, *_: object) -> None:
        files.close(keep=kind is not None and not issubclass(kind, StopLoading | ConfigError))

    stack.push(close)
    return files


def _build(config: EngineConfig, stage: Callable[[str], None]) -> Steppable:
    from schedtop.engine.build import build_engine  # late: what it imports may take seconds

    try:
        return build_engine(config, stage)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _watch_owner(server: ChannelServer, life: EndReasons) -> None:
    def read() -> None:
        if not os.read(0, 4096):
            server.unwatch(0)
            life.end(OWNER_GONE)

    server.watch(0, read)


def _fail(line: str, code: int) -> int:
    _log(line)
    return code


def _log(line: str) -> None:
    with suppress(OSError):  # a dead owner reads nothing
        print(f"schedtop engine: {one_line(line)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    leave(main())
