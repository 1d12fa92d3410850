"""What lies outside the pool, as a case describes it: loads, sends, and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.engine.scheduler.plain.request import PlainRequest


@dataclass
class Load:
    """A load begun: `first_lost` is the index of the first block that does not come; `whole`: nothing comes."""

    request: PlainRequest
    due: int
    first_lost: int | None
    whole: bool


class PlainStore:
    def __init__(self, config: dict[str, Any] | None, size: int, num_groups: int) -> None:
        self.config = config or {}
        self.on = config is not None
        self.waits = self.config.get("mode", "async") == "async"
        self.fails_requests = self.config.get("on_failure", "recompute") == "fail"
        role = self.config.get("role") or "kv_both"
        self.consumes, self.produces = self.on and role != "kv_producer", self.on and role != "kv_consumer"
        self.size, self.num_groups = size, num_groups
        self.used: set[str] = set()
        self.loads: list[Load] = []
        self.sends: list[tuple[PlainRequest, int]] = []
        self.started: dict[str, list[int]] = {}
        self.lost_now: dict[int, PlainRequest] = {}

    def begin_step(self) -> None:
        self.started, self.lost_now = {}, {}

    def tokens(self, request: PlainRequest, local: int, step: int) -> int | None:
        """Tokens that follow the local hit; None: it cannot say yet."""
        external = request.spec.get("external")
        if not self.on or not external or request.spec.get("skip_reading_prefix_cache"):
            return 0
        if request.id in self.used and not self.config.get("reuse"):
            return 0
        if step < (external.get("known_step") or 0):
            return None
        tokens = min(external["tokens"], len(request.prompt))
        if not self.waits:
            tokens = min(tokens, request.num_tokens - 1) // self.size * self.size
        return max(0, tokens - local)

    def begin(self, request: PlainRequest, local: int, tokens: int, step: int) -> None:
        """A load of `tokens` behind the local hit begins."""
        external = request.spec["external"]
        fails = None if request.id in self.used else external.get("fail_block")
        whole = fails is not None and self.waits and (fails == "all" or self.num_groups > 1)
        first_lost = None
        if fails is not None and not whole:
            first = max(0 if fails == "all" else fails, local // self.size)
            if first * self.size < local + tokens:
                first_lost = first
        self.used.add(request.id)
        self.started[request.id] = [local, tokens]
        if self.waits:
            steps = external.get("load_steps", self.config.get("load_steps") or 0)
            self.loads.append(Load(request, step + steps, first_lost, whole))
        elif first_lost is not None:
            for block in request.tables[0][first_lost : -(-(local + tokens) // self.size)]:
                if block is not None:
                    self.lost_now[block] = request

    def finished_loads(self, step: int) -> list[Load]:
        done = [load for load in self.loads if load.due <= step]
        self.loads = [load for load in self.loads if load.due > step]
        return done

    def send_steps(self, request: PlainRequest) -> int:
        own = request.spec.get("send_steps")
        return int(self.config.get("send_steps") or 0) if own is None else int(own)

    def finished_sends(self, step: int) -> list[PlainRequest]:
        done = [request for request, due in self.sends if due <= step]
        self.sends = [(request, due) for request, due in self.sends if due > step]
        return done
