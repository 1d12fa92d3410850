"""Forecasts for the console, computed in a separate process so that keys stay responsive.

`python -m schedtop.console.cli.forecast_process` is that process: length-prefixed msgpack in on stdin, out on stdout.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from schedtop.console.cli.pipe_messages import read_message, write_message
from schedtop.engine.contract.telemetry import Arrival, Header, Snapshot
from schedtop.engine.sim.linear import LinearCost

if TYPE_CHECKING:
    from schedtop.engine.whatif.forecast import Forecast

HORIZON_S = 10.0
REPLICAS = 4


class ForecastError(Exception):
    """There is no forecast; the text says why."""


class Asked(msgspec.Struct, array_like=True):
    header: Header
    snapshot: Snapshot
    staged: dict[str, Any]
    recent: list[Arrival]
    cost: LinearCost | None


class ForecastProcess:
    """Callable as the console asks, from one thread. The process starts with the first forecast.

    `device` takes the place of the engine's.
    """

    def __init__(self, device: str | None = None) -> None:
        self._device = device
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(
        self,
        header: Header,
        snapshot: Snapshot,
        staged: Mapping[str, Any],
        recent: Sequence[Arrival],
        cost: LinearCost | None = None,
    ) -> Forecast:
        """Raises `ForecastError`. `cost` gives step times, if the header does not."""
        from schedtop.engine.whatif.forecast import Forecast

        if self._device is not None:
            header = msgspec.structs.replace(header, device=self._device)
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            asked = Asked(header, snapshot, dict(staged), list(recent), cost)
            write_message(self._process.stdin, msgspec.msgpack.encode(asked))
            body = read_message(self._process.stdout)
        except OSError:
            body = None
        if body is None:
            raise ForecastError("the process that works it out has ended")
        reason, found = msgspec.msgpack.decode(body, type=tuple[str | None, Forecast | None])
        if found is None:
            raise ForecastError(reason or "no reason given")
        return found

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "schedtop.console.cli.forecast_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process; a forecast under way is dropped."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Answer until stdin ends."""
    from schedtop.engine.whatif.forecast import forecast

    while (body := read_message(sys.stdin.buffer)) is not None:
        asked = msgspec.msgpack.decode(body, type=Asked)
        answer: tuple[str | None, Forecast | None]
        try:
            found = forecast(
                asked.header,
                asked.snapshot,
                asked.staged,
                recent=asked.recent,
                horizon_s=HORIZON_S,
                replicas=REPLICAS,
                cost=asked.cost,
            )
            answer = (None, found)
        except ValueError as error:
            answer = (str(error), None)
        write_message(sys.stdout.buffer, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
