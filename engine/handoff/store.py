"""The hand-off to a store of KV state outside the pool: what it holds, loads and saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schedtop.engine.handoff.request import Request


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has ended. `first_lost`: index of the first missing block; `whole`: nothing was loaded."""

    request: Request
    first_lost: int | None = None
    whole: bool = False


class KVStore(Protocol):
    """`waits`: loads take steps, and their requests wait meanwhile; otherwise they are there within the step.

    `fails_requests`: a failed load ends its request; otherwise what is lost is computed. `consumes`: blocks must not
    go to others while a step under way may still write to them.
    """

    waits: bool
    fails_requests: bool
    consumes: bool

    def tokens(self, request: Request, local: int) -> int | None:
        """Tokens it holds beyond the `local` ones; None: not known yet."""
        ...

    def begin(self, request: Request, local: int, tokens: int) -> None:
        """A load begins; the blocks for it are the request's."""
        ...

    def take_lost(self) -> dict[int, Request]:
        """Blocks that loads begun since the last call, which do not wait, will not fill, and whose they are."""
        ...

    def finished_loads(self) -> list[Load]:
        """Loads that ended since the last call, in the order in which they began."""
        ...

    def send(self, request: Request) -> bool:
        """A request has run to its end; True: its blocks are kept until its send is finished."""
        ...

    def finished_sends(self) -> list[Request]: ...

    def swap_out(self, request: Request, num_computed: int) -> bool:
        """Keep what a preempted request has computed until it is loaded again; False: the store does not."""
        ...

    def forget(self, request: Request) -> None:
        """A request has ended: what was kept only for it can be dropped."""
        ...
