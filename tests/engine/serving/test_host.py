"""What the machine gives the engine, as this machine tells it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from schedtop.engine.contract.telemetry import Host
from schedtop.engine.serving import host
from schedtop.engine.serving.host import HostWatch


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "EVERY_S", 0.05)


def reported(watch: HostWatch) -> Iterator[Host]:
    """What it finds while this process works."""
    watch.start()
    try:
        while True:
            yield from watch.take()
    finally:
        watch.close()


def test_a_busy_process_has_processor_time_and_waits_for_it_are_known() -> None:
    found = next(reported(HostWatch()))
    assert found.cpu > 0.0 and found.span_s > 0.0
    assert found.delay is not None and found.delay >= 0.0
    assert (found.gpu_busy, found.gpu_clock_mhz) == (None, None)


def test_a_gpu_that_fails_is_not_asked_again() -> None:
    asked: list[int] = []

    def gpu() -> tuple[float, int, int]:
        asked.append(1)
        if len(asked) > 1:
            raise RuntimeError("GPU is lost")
        return 0.97, 1410, 1980

    rounds = reported(HostWatch(lambda: gpu))
    first, *others = (next(rounds) for _ in range(4))
    assert (first.gpu_busy, first.gpu_clock_mhz, first.gpu_top_clock_mhz) == (0.97, 1410, 1980)
    assert all(found.gpu_busy is None for found in others) and len(asked) == 2
