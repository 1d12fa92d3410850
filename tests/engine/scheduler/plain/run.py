"""A run of the plain scheduler over a case: events, the passes, the model, and what comes of its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.engine.scheduler.plain.images import PlainImages
from tests.engine.scheduler.plain.kv import PlainKV
from tests.engine.scheduler.plain.passes import Passes, Row
from tests.engine.scheduler.plain.pool import Table
from tests.engine.scheduler.plain.request import STOP_TOKEN, PlainRequest, read_request
from tests.engine.scheduler.plain.store import Load, PlainStore


@dataclass
class Batch:
    step: int
    rows: list[Row]
    lost: dict[int, PlainRequest]


def waits_to_be_ready(spec: dict[str, Any]) -> bool:
    """Whether a request of a case arrives before it is ready."""
    return bool(spec.get("ready_step", 0) > spec["arrival_step"])


class PlainRun:
    """Runs a case, given as its JSON. `steps` yields every decided step; `ends` maps ids to why they ended."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        config = self.config = {name: value for name, value in case["config"].items() if value is not None}
        self.is_async, self.pipeline = bool(config.get("async_scheduling")), config.get("pipeline_depth", 1)
        self.depth = self.pipeline + self.is_async
        self.kv = PlainKV(config, self.depth)
        self.images = PlainImages(config)
        self.store = PlainStore(config.get("kv_connector"), config.get("block_size", 16), len(self.kv.groups))
        self.waiting: list[PlainRequest] = []
        self.holding: list[PlainRequest] = []
        self.running: list[PlainRequest] = []
        self.held: list[PlainRequest] = []
        self.batches: list[Batch] = []
        self.deferred: list[tuple[int, Table]] = []
        self.unreported = False
        self.requests: dict[str, PlainRequest] = {}
        self.ends: dict[str, str] = {}
        self.input_budget = config["max_num_batched_tokens"]
        self.token_budget = config.get("max_num_scheduled_tokens") or self.input_budget
        self.max_num_seqs = config["max_num_seqs"]
        self.cap = config.get("max_num_active_seqs") or config["max_num_seqs"]
        self.threshold = config.get("long_prefill_token_threshold", 0)
        self.watermark = config.get("watermark", 0.0)
        self.reserve_full = config.get("scheduler_reserve_full_isl", True)
        self.k = self.new_drafts = config.get("num_speculative_tokens", 0)
        self.slots, self.longest = config.get("draft_slots", 0), config["max_model_len"]
        self.chunking = config.get("enable_chunked_prefill", True)
        self.max_loras, self.pooling = config.get("max_loras", 0), bool(config.get("pooling"))

    def steps(self) -> Iterator[dict[str, Any]]:
        requests, knobs, aborts = self.case["requests"], self.case.get("knobs") or [], self.case.get("aborts") or []
        events = [request["arrival_step"] for request in requests]
        events += [event["step"] for event in (*knobs, *aborts)]
        step = 0
        while step <= max(events, default=0) or self.is_busy() or self.is_under_way():
            for knob in knobs:
                if knob["step"] == step:
                    self.turn(knob["set"])
            for ordinal, spec in enumerate(requests):
                if spec["arrival_step"] == step:
                    self.arrive(read_request(spec, ordinal, len(self.kv.groups)))
            for abort in aborts:
                if abort["step"] == step:
                    self.abort(abort["id"])
            if self.is_busy():
                yield self.step(step)
            elif self.unreported:
                self.step(step)  # a last, empty batch tells who has ended
            elif self.is_under_way():
                self.update(step)
            step += 1

    def is_busy(self) -> bool:
        return bool(self.waiting or self.holding or self.running or self.held)

    def is_under_way(self) -> bool:
        return self.depth > 1 and bool(self.batches or self.unreported)

    def turn(self, knobs: dict[str, Any]) -> None:
        for name, value in knobs.items():
            match name:
                case "max_num_batched_tokens":
                    self.input_budget = self.token_budget = value
                case "max_num_seqs":
                    self.max_num_seqs = self.cap = value
                case "long_prefill_token_threshold":
                    self.threshold = value
                case "watermark":
                    self.watermark = value
                case "scheduler_reserve_full_isl":
                    self.reserve_full = value
                case "enable_prefix_caching":
                    self.kv.caching = value
                case "num_speculative_tokens":
                    self.k = value
        if "max_num_scheduled_tokens" in knobs:
            self.token_budget = knobs["max_num_scheduled_tokens"] or self.input_budget
        if "max_num_active_seqs" in knobs:
            self.cap = knobs["max_num_active_seqs"] or self.max_num_seqs

    # Coming and going

    def arrive(self, request: PlainRequest) -> None:
        prompt = len(request.prompt)
        unchunked = not self.chunking and prompt > self.largest_chunk()
        impossible = prompt < 1 or (request.max_tokens < 1 and not self.pooling)
        impossible |= prompt >= self.longest + self.pooling or prompt > self.kv.capacity
        if impossible or unchunked:
            self.ends[request.id] = "refused"
            return
        self.requests[request.id] = request
        self.queue(request, front=False)

    def abort(self, id: str) -> None:
        request = self.requests.get(id)
        if request is None or request.ended:
            return
        self.unqueue(request)
        if request.loading:
            request.ended = self.unreported = True
            self.ends[id] = "abort"
            self.images.leave(request)
            self.hold(request)  # until the load reports
        else:
            self.end(request, "abort")

    def queue(self, request: PlainRequest, front: bool) -> None:
        self.put(self.waiting, [request], front)

    def put(self, queue: list[PlainRequest], requests: list[PlainRequest], front: bool) -> None:
        queue[:] = requests + queue if front else queue + requests
        if self.config.get("policy") == "priority":
            queue.sort(key=lambda one: one.urgency)

    def unqueue(self, request: PlainRequest) -> None:
        for queue in (self.waiting, self.holding, self.running):
            if request in queue:
                queue.remove(request)

    def restore(self, aside: dict[str, list[PlainRequest]]) -> None:
        """What the waiting pass set aside returns to the front of its queue."""
        self.put(self.holding, aside["holding"], front=True)
        self.put(self.waiting, aside["waiting"], front=True)

    def hold(self, request: PlainRequest) -> None:
        self.held.append(request)
        self.held.sort(key=lambda one: one.ordinal)

    def end(self, request: PlainRequest, reason: str) -> None:
        request.ended = self.unreported = True
        self.ends[request.id] = reason
        self.images.leave(request)
        self.give_back(request)

    def give_back(self, request: PlainRequest) -> None:
        """Free its blocks; a consuming store waits until no batch under way can write to them."""
        if self.depth > 1 and self.store.consumes and request.batches:
            blocks = [block for table in request.tables for block in table]
            self.deferred.append((self.batches[-1].step, blocks[::-1]))
            request.forget_blocks()
            return
        self.kv.free(request)

    # Limits

    def largest_chunk(self) -> int:
        """Most tokens one request can get in an otherwise empty step."""
        return int(min(self.token_budget, self.input_budget - self.slots))

    def chunk_limit(self) -> float:
        """The long-prefill threshold, where it is on."""
        if self.threshold == 0 or self.num_unfinished() <= 1:
            return float("inf")
        if self.config.get("long_prefill_token_threshold_adaptive"):
            return float(max(self.threshold, self.input_budget // self.num_unfinished()))
        return float(self.threshold)

    def num_unfinished(self) -> int:
        return sum(not request.ended for request in self.requests.values())

    def is_alone(self, request: PlainRequest) -> bool:
        """Nobody else runs or holds a block."""
        own = {block for table in request.tables for block in table} - {None}
        others = set(self.running) - {request}
        return not others and len(own) + len(self.kv.pool.free) == self.config["num_blocks"]

    def watermark_blocks(self) -> int:
        return int(self.watermark * (self.config["num_blocks"] + 1)) if self.running else 0

    def pick_victim(self) -> PlainRequest:
        if self.config.get("policy") == "priority":
            return max(self.running, key=lambda request: request.urgency)
        return self.running[-1]

    # One step

    def step(self, step: int) -> dict[str, Any]:
        self.images.begin_step()
        self.store.begin_step()
        passes = Passes(self, step)
        passes.pass_over_running()
        if not passes.preempted:
            passes.pass_over_waiting()
        self.batches.append(self.seal(passes))
        self.unreported = False
        decided: dict[str, Any] = {
            "step": step,
            "scheduled": [[row.request.id, row.n, row.num_drafts] for row in passes.rows],
            "admitted": passes.admitted,
            "preempted": passes.preempted,
            "running": [request.id for request in self.running],
            "waiting": [request.id for request in self.waiting],
            "free_blocks": len(self.kv.pool.free),
        }
        specs = self.case["requests"]
        if self.max_loras or self.store.on or self.depth > 1 or any(map(waits_to_be_ready, specs)):
            decided["skipped"] = [request.id for request in passes.skipped]
        if self.store.on:
            decided["holding"] = [request.id for request in self.holding]
            decided["load_started"] = dict(self.store.started)
        if self.images.on:
            decided["encoded"] = {row.request.id: row.encoded for row in passes.rows if row.encoded}
            decided["images_dropped"] = list(self.images.dropped)
        is_due = len(self.batches) == self.depth or not (passes.rows or self.is_busy())
        return {**decided, **self.update(step, is_due)}

    def seal(self, passes: Passes) -> Batch:
        """The step is planned: what it schedules counts as computed."""
        for row in passes.rows:
            request = row.request
            known = request.num_tokens + request.placeholders
            row.num_drafts = max(0, request.computed + row.n - max(known, request.computed))
            request.computed += row.n
            request.under_way += row.n
            request.batches.append(passes.step)
            request.mid_prompt = request.computed < known
            row.samples = not request.mid_prompt
            request.num_drafts = 0
            if row.samples and self.is_async and not self.pooling:
                request.placeholders += 1 + row.num_drafts
                request.num_drafts = self.k
                request.next_decode_step = passes.step + self.pipeline
        return Batch(passes.step, passes.rows, dict(self.store.lost_now))

    def update(self, step: int, is_due: bool = True) -> dict[str, Any]:
        due, self.batches = (self.batches[:1], self.batches[1:]) if is_due else ([], self.batches)
        self.finished: list[str] = []
        self.errors: list[PlainRequest] = []
        done: list[Load] = []
        sent: list[PlainRequest] = []
        failed: list[PlainRequest] = []
        for batch in due:
            for at, blocks in [one for one in self.deferred if one[0] <= batch.step]:
                self.kv.pool.give_back(blocks)
                self.deferred.remove((at, blocks))
            for row in batch.rows:
                if batch.step in row.request.batches:
                    row.request.batches.remove(batch.step)
            if self.store.on:
                done, sent = self.store.finished_loads(step), self.store.finished_sends(step)
                failed = self.fail(batch, done)
            for row in batch.rows:
                self.apply(batch, row, step)
            self.report(done, sent)
        reported: dict[str, Any] = {"finished": self.finished, "free_blocks_after": len(self.kv.pool.free)}
        if self.depth > 1:
            reported["applied"] = due[0].step if due and due[0].rows else None
        if self.store.on and due:
            reported["load_done"] = [load.request.id for load in done]
            reported["send_done"] = [request.id for request in sent]
            reported["load_failed"] = [one.id for one in sorted(failed, key=lambda one: one.ordinal)]
            reported["errors"] = [one.id for one in sorted(self.errors, key=lambda one: one.ordinal)]
        if self.store.on:
            reported["held"] = [request.id for request in self.held]
        return reported

    # Results

    def apply(self, batch: Batch, row: Row, step: int) -> None:
        request, num_drafts = row.request, row.num_drafts
        same_life = row.life == request.life
        if same_life:
            request.under_way -= row.n
        if request.ended or row.lost_result or (not same_life and self.store.produces):
            return
        if row.samples and self.pooling:
            self.finish(request, step)
            return
        if row.samples:
            place = len(request.outputs)
            accepted = 0 if row.fresh else (request.ordinal + place) % (num_drafts + 1)
            if same_life:
                request.computed -= num_drafts - accepted
                if self.is_async:
                    request.placeholders -= num_drafts - accepted
            stopped = self.append(request, accepted + 1)
            if same_life and self.is_async:
                request.placeholders -= len(request.outputs) - place
                self.kv.register(request, request.computed - request.placeholders)
            if stopped:
                self.finish(request, step)
                return
            if same_life and self.depth == 1:
                request.num_drafts = self.new_drafts
        if same_life:
            self.images.advance(request)

    def append(self, request: PlainRequest, count: int) -> bool:
        """Give a request up to `count` outputs; True: it ends with them."""
        stop = min(len(request.prompt) + request.max_tokens, self.longest, self.kv.capacity + 1)
        for _ in range(count):
            token = request.output(len(request.outputs))
            request.outputs.append(token)
            if request.num_tokens >= stop or token == STOP_TOKEN:
                return True
        return False

    def finish(self, request: PlainRequest, step: int) -> None:
        self.unqueue(request)
        self.finished.append(request.id)
        asked = min(len(request.prompt) + request.max_tokens, self.longest)
        reason = "length" if self.pooling or request.num_tokens >= asked else "kv_capacity"
        if request.outputs and request.outputs[-1] == STOP_TOKEN:
            reason = "stop"
        steps = self.store.send_steps(request)
        if not (self.store.on and steps):
            self.end(request, reason)
            return
        request.ended = self.unreported = True
        self.ends[request.id] = reason
        self.images.leave(request)
        self.kv.release_skipped(request)
        self.store.sends.append((request, step + steps))
        self.hold(request)

    def fail(self, batch: Batch, done: list[Load]) -> list[PlainRequest]:
        """Loads that brought less than they should; returns whose are reported as failed."""
        failed: list[PlainRequest] = list(dict.fromkeys(batch.lost.values()))
        for load in done:
            request = load.request
            lost = 0 if load.whole else load.first_lost
            if lost is None:
                continue
            if load.whole or not (request.ended or self.store.fails_requests):
                failed.append(request)
            if request.ended:
                continue
            if self.store.fails_requests:
                self.unqueue(request)
                request.ended = self.unreported = True
                self.ends[request.id] = "error"
                self.errors.append(request)
                self.hold(request)
            else:
                request.load_failed = True
                request.computed = min(request.computed, lost * self.store.size)
        marked: set[int] = set()
        rows = {row.request.id: row for row in batch.rows}
        for request in list(self.running) if batch.lost else []:
            self.cut(request, rows.get(request.id), batch.lost, marked)
        return failed

    def cut(self, request: PlainRequest, row: Row | None, lost: dict[int, PlainRequest], marked: set[int]) -> None:
        """A request with lost blocks computes from the first one on, unless another already does.

        `row` is its part of the batch, None for one whose step is a later one (vLLM looks at all who run).
        """
        before = request.computed - (0 if row is None else row.n)
        table = request.tables[0][: -(-before // self.store.size)]
        places = [place for place, block in enumerate(table) if block in lost]
        if not places:
            return
        if row is not None:
            row.lost_result = True
        own = [place for place in places if table[place] not in marked]
        marked.update(block for block in table if block in lost)
        if self.store.fails_requests:
            self.unqueue(request)
            self.errors.append(request)
            self.end(request, "error")
            return
        request.computed = own[0] * self.store.size if own else before

    def report(self, done: list[Load], sent: list[PlainRequest]) -> None:
        for load in done:
            request = load.request
            request.loading, request.just_loaded = False, True
            if request.ended:
                self.held.remove(request)
                self.give_back(request)
        for request in sent:
            self.held.remove(request)
            self.give_back(request)
