"""The waiting queue: first come first served, or by urgency. Nobody overtakes its head."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from schedtop.engine.handoff.request import Request


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def head(self) -> Request: ...
    def pop(self) -> Request: ...
    def add(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def remove(self, request: Request) -> None: ...


class FcfsQueue:
    """In order of arrival; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def head(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.popleft()

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def put_back(self, request: Request) -> None:
        self._queue.appendleft(request)

    def remove(self, request: Request) -> None:
        self._queue.remove(request)


def urgency(request: Request) -> tuple[int, float, int]:
    """Sort key of the priority policy: a lower priority number, then an earlier arrival, goes first."""
    return (request.priority, request.arrival_s, request.number)


class PriorityQueue:
    """By `urgency`; a preempted request goes back where it belongs."""

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def head(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.pop(0)

    def add(self, request: Request) -> None:
        insort(self._queue, request, key=urgency)

    put_back = add

    def remove(self, request: Request) -> None:
        self._queue.remove(request)


def open_queue(policy: str) -> WaitingQueue:
    return PriorityQueue() if policy == "priority" else FcfsQueue()
