"""A reason to end that comes while an engine loads."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from schedtop.engine.serving.service import EndReasons, StopLoading


@pytest.fixture
def life() -> Iterator[EndReasons]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    life = EndReasons()
    life.install()
    yield life
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_it_ends_loading_at_once(life: EndReasons) -> None:
    with pytest.raises(StopLoading, match="SIGTERM"), life.interruptible():
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("went on loading")


def test_what_is_being_opened_is_closed_all_the_same(life: EndReasons) -> None:
    closed: list[str] = []
    with pytest.raises(StopLoading, match="SIGTERM"), ExitStack() as stack, life.interruptible():
        with life.undisturbed():
            signal.raise_signal(signal.SIGTERM)
            stack.callback(closed.append, "opened")
        pytest.fail("went on loading")
    assert closed == ["opened"]
