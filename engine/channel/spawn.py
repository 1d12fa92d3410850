"""Starts an engine process that lives as long as its owner."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress

import msgspec
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.listen import default_address, remove_socket
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.config import EngineConfig

_STDERR_LINES = 200
_RETRY_S = 0.02
_TERMINATE_WITHIN_S = 0.3


class EngineProcess:
    """An engine this process owns. When the owner dies or calls `close`, the engine drains and exits.

    `process` is the child, in its own session, so that Ctrl+C in the terminal does not reach it.
    """

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._reader = threading.Thread(target=self._read_stderr, name="engine-stderr", daemon=True)
        self._reader.start()

    def connect(self, timeout_s: float = 10.0, *, read_only: bool = False) -> ChannelClient:
        """A joined client, as soon as the engine listens. Raises `ChannelError`, with the exit cause if it died."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return ChannelClient.connect(self.address, timeout_s, read_only=read_only)
            except ChannelError:
                if self.process.poll() is not None:
                    raise ChannelError(self.exit_cause() or "the engine ended") from None
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_RETRY_S)

    def exit_cause(self) -> str | None:
        """Why the engine ended, in one line: its last message, or its exit code or signal. None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        self._reader.join(timeout=1.0)
        words = next((line for line in reversed(self._stderr) if line.strip()), "").removeprefix(
            "schedtop engine: "
        )
        if code < 0:
            return f"the engine was killed by signal {-code}" + (f" ({words})" if words else "")
        if code:
            return words or f"the engine ended with exit code {code}"
        return "the engine ended"

    def stderr_tail(self) -> list[str]:
        """The last lines the engine wrote to its standard error."""
        return list(self._stderr)

    def close(self, within_s: float = 6.0) -> int:
        """Let the engine drain and exit; end it by force if it takes longer. Returns its exit code."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)  # a suspended process handles nothing else
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(within_s)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_TERMINATE_WITHIN_S)
        self.process.kill()
        code = self.process.wait()
        remove_socket(self.address)
        return code

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in iter(lambda: stream.readline(4096), b""):
                self._stderr.append(line.decode(errors="replace").rstrip("\n"))

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_engine(config: EngineConfig) -> EngineProcess:
    """Start an engine for `config`; it listens on `config.socket` or a fresh private path. Does not wait for it.

    Raises `ChannelError` when no process can be started.
    """
    address = config.socket or default_address()
    line = msgspec.json.encode(msgspec.structs.replace(config, socket=address))
    try:
        process = subprocess.Popen(
            # -P: the working directory must not come first on the import path.
            [sys.executable, "-P", "-m", "schedtop.engine.serving.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    except OSError as error:
        raise ChannelError(f"cannot start the engine: {error.strerror or error}") from None
    return EngineProcess(process, address)
