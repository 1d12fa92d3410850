"""The waiting queue: first come first served, or by urgency. Nothing overtakes its head, except when the head is not
ready.

Requests that are not ready keep their place and are not examined: they cost nothing while they wait.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from schedtop.engine.contract.telemetry import Deferral
from schedtop.engine.handoff.request import Request

Place = Callable[[Request], tuple[float, ...]]


def urgency(request: Request) -> tuple[int, float, int]:
    """Sort key of the priority policy: a lower priority number, then an earlier arrival, goes first."""
    return (request.priority, request.arrival_s, request.number)


class ReadyLine:
    """Requests that are ready, in order of `place`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def head(self) -> Request | None:
        return self._requests[0] if self._requests else None

    def first(self) -> Request | None:
        """The first of all, including those passed over."""
        return self.head()

    def shut(self) -> list[Request]:
        """Those that the last waiting pass passed over, in order."""
        return []

    def pop(self) -> Request:
        return self._requests.popleft()

    def insert(self, request: Request) -> None:
        requests, place = self._requests, self.place
        if not requests or place(request) > place(requests[-1]):
            requests.append(request)
        elif place(request) < place(requests[0]):
            requests.appendleft(request)
        else:
            insort(requests, request, key=place)

    def remove(self, request: Request) -> None:
        if self._requests[0] is request:
            self._requests.popleft()
        else:
            self._requests.remove(request)


class AdapterLines(ReadyLine):
    """One line per adapter: while an adapter does not fit, all its requests are passed over at once."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lines: dict[int, ReadyLine] = {}
        self.closed: set[int] = set()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Request]:
        return merge(*self._lines.values(), key=self.place)

    def head(self) -> Request | None:
        """The first whose adapter's line is open."""
        return self._first_of(line for adapter, line in self._lines.items() if adapter not in self.closed)

    def first(self) -> Request | None:
        return self._first_of(self._lines.values())

    def shut(self) -> list[Request]:
        return list(
            merge(*(line for adapter, line in self._lines.items() if adapter in self.closed), key=self.place)
        )

    def _first_of(self, lines: Iterable[ReadyLine]) -> Request | None:
        heads = [head for line in lines if (head := line.head()) is not None]
        return min(heads, key=self.place, default=None)

    def pop(self) -> Request:
        head = self.head()
        assert head is not None, "popped only where there is a head"
        self.remove(head)
        return head

    def insert(self, request: Request) -> None:
        self._lines.setdefault(request.adapter, ReadyLine(self.place)).insert(request)

    def remove(self, request: Request) -> None:
        line = self._lines[request.adapter]
        line.remove(request)
        if not line:
            del self._lines[request.adapter]


class WaitingQueue:
    """Requests in order of `place`, those that are ready apart from the `deferred` ones.

    `num_deferred` counts the latter by reason; `deferrals` tells who became deferred or ready, until it is taken.
    """

    def __init__(self, ready: ReadyLine) -> None:
        self.place = ready.place
        self.ready = ready
        self.deferred: list[Request] = []
        self._front = self._back = 0
        self.num_deferred: Counter[str] = Counter()
        self.deferrals: list[Deferral] = []

    def __len__(self) -> int:
        return len(self.ready) + len(self.deferred)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in order."""
        return merge(self.ready, self.deferred, key=self.place) if self.deferred else iter(self.ready)

    def head(self) -> Request | None:
        """The first that is ready."""
        return self.ready.head()

    @property
    def first_number(self) -> int:
        """The head's number; if none is ready, that of the first waiting request; -1 if none waits."""
        first = self.ready.first() or next(iter(self.deferred), None)
        return -1 if first is None else first.number

    def pop(self) -> Request:
        """Remove and return the head; there must be one."""
        return self.ready.pop()

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
        self.ready.insert(request)

    def make_ready(self, request: Request) -> None:
        """The request is ready now, at the place it kept."""
        self._leave_deferred(request)
        self._insert(request)

    def remove(self, request: Request) -> None:
        if request.deferred is None:
            self.ready.remove(request)
        else:
            self._leave_deferred(request)

    def _leave_deferred(self, request: Request) -> None:
        assert request.deferred is not None, "only a deferred request can become ready"
        self.deferred.remove(request)
        self.num_deferred[request.deferred.value] -= 1
        request.deferred = None
        self.deferrals.append(Deferral(request.number))


def _order_put(request: Request) -> tuple[float]:
    return (request.place,)


def open_queue(policy: str, by_adapter: bool = False) -> WaitingQueue:
    """The queue of a policy; `by_adapter`: adapters are limited."""
    place: Place = urgency if policy == "priority" else _order_put
    return WaitingQueue(AdapterLines(place) if by_adapter else ReadyLine(place))
