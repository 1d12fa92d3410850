"""The store of a case: what lies outside the pool, how long loads and sends take, and which load fails."""

from __future__ import annotations

from schedtop.engine.contract.config import KVConnector
from schedtop.engine.golden.case_requests import CaseRequest
from schedtop.engine.handoff.request import Request
from schedtop.engine.handoff.store import Load


class CaseStore:
    """`now` is the step; `known` maps numbers to what a case says of its requests."""

    def __init__(self, config: KVConnector, block_size: int, num_groups: int) -> None:
        self.config = config
        self.block_size = block_size
        self.num_groups = num_groups
        self.waits = config.mode == "async"
        self.fails_requests = config.on_failure == "fail"
        self.consumes = config.role != "kv_producer"
        self.now = 0
        self.known: dict[int, CaseRequest] = {}
        self._used: set[int] = set()
        self._loads: list[tuple[int, Load]] = []
        self._sends: list[tuple[int, Request]] = []
        self._lost: dict[int, Request] = {}

    def tokens(self, request: Request, local: int) -> int | None:
        external = self.known[request.number].external
        if external is None or (request.number in self._used and not self.config.reuse):
            return 0
        if self.now < external.known_step:
            return None
        tokens = min(external.tokens, request.num_prompt_tokens)
        if not self.waits:
            tokens = min(tokens, request.num_tokens - 1) // self.block_size * self.block_size
        return max(tokens - local, 0)

    def begin(self, request: Request, local: int, tokens: int) -> None:
        external = self.known[request.number].external
        assert external is not None, "only what it has can be loaded"
        fails = None if request.number in self._used else external.fail_block
        self._used.add(request.number)
        whole = fails is not None and self.waits and (fails == "all" or self.num_groups > 1)
        first_lost = None
        if fails is not None and not whole:
            first = max(fails if isinstance(fails, int) else 0, local // self.block_size)
            first_lost = first if first * self.block_size < local + tokens else None
        if self.waits:
            steps = self.config.load_steps if external.load_steps is None else external.load_steps
            self._loads.append((self.now + steps, Load(request, first_lost, whole)))
        elif first_lost is not None:
            end = -(-(local + tokens) // self.block_size)
            # Those before the window are null from the start: nothing was to come for them.
            self._lost.update((block, request) for block in request.block_ids[first_lost:end] if block >= 0)

    def take_lost(self) -> dict[int, Request]:
        lost, self._lost = self._lost, {}
        return lost

    def finished_loads(self) -> list[Load]:
        done = [load for due, load in self._loads if due <= self.now]
        self._loads = [entry for entry in self._loads if entry[0] > self.now]
        return done

    def send(self, request: Request) -> bool:
        own = self.known[request.number].send_steps
        steps = self.config.send_steps if own is None else own
        if steps:
            self._sends.append((self.now + steps, request))
        return steps > 0

    def finished_sends(self) -> list[Request]:
        done = [request for due, request in self._sends if due <= self.now]
        self._sends = [entry for entry in self._sends if entry[0] > self.now]
        return done

    def swap_out(self, request: Request, num_computed: int) -> bool:
        return False

    def forget(self, request: Request) -> None:
        """Nothing is kept per request."""
