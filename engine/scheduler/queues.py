"""The waiting queue: first come first served, or by urgency. Nobody overtakes its head but those who are not ready.

Requests that are not ready keep their place and are not looked at: they cost nothing while they wait.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from heapq import merge

from schedtop.engine.contract.telemetry import Deferral
from schedtop.engine.handoff.request import Request

Place = Callable[[Request], tuple[float, ...]]


def urgency(request: Request) -> tuple[int, float, int]:
    """Sort key of the priority policy: a lower priority number, then an earlier arrival, goes first."""
    return (request.priority, request.arrival_s, request.number)


class WaitingQueue:
    """Requests in order of `place`, those that are ready apart from the `deferred` ones.

    `num_deferred` counts the latter by reason; `deferrals` tells who became deferred or ready, until it is taken.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._ready: deque[Request] = deque()
        self.deferred: list[Request] = []
        self._front = self._back = 0
        self.num_deferred: Counter[str] = Counter()
        self.deferrals: list[Deferral] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self.deferred)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in order."""
        return merge(self._ready, self.deferred, key=self.place) if self.deferred else iter(self._ready)

    def head(self) -> Request | None:
        """The first that is ready."""
        return self._ready[0] if self._ready else None

    @property
    def first_number(self) -> int:
        """The head's number; if nobody is ready, that of the first who waits; -1 if nobody does."""
        waiting = self._ready or self.deferred
        return waiting[0].number if waiting else -1

    def pop(self) -> Request:
        """The head, which leaves; there must be one."""
        return self._ready.popleft()

    def add(self, request: Request) -> None:
        """First come first served: at the end."""
        self._back += 1
        request.place = self._back
        self._insert(request)

    def put_back(self, request: Request) -> None:
        """A preempted request. First come first served: in front."""
        request.place = self._front
        self._front -= 1
        self._insert(request)

    def _insert(self, request: Request) -> None:
        if request.deferred is not None:
            insort(self.deferred, request, key=self.place)
            self.num_deferred[request.deferred.value] += 1
            self.deferrals.append(Deferral(request.number, request.deferred.value))
            return
        ready, place = self._ready, self.place
        if not ready or place(request) > place(ready[-1]):
            ready.append(request)
        elif place(request) < place(ready[0]):
            ready.appendleft(request)
        else:
            insort(ready, request, key=place)

    def make_ready(self, request: Request) -> None:
        """From now on an ordinary request, at the place it kept."""
        self._leave_deferred(request)
        self._insert(request)

    def remove(self, request: Request) -> None:
        if request.deferred is None:
            self._ready.remove(request)
        else:
            self._leave_deferred(request)

    def _leave_deferred(self, request: Request) -> None:
        assert request.deferred is not None, "only a deferred request can become ready"
        self.deferred.remove(request)
        self.num_deferred[request.deferred.value] -= 1
        request.deferred = None
        self.deferrals.append(Deferral(request.number))


def open_queue(policy: str) -> WaitingQueue:
    return WaitingQueue(urgency if policy == "priority" else lambda request: (request.place,))
