"""Requests that are not ready keep their place and block nobody; the queue says why each of them waits."""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.contract.figures import COLUMNS, row_of
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.telemetry import Deferral, Limiter
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.step.observer import Observer


def request(name: str, deferred: Limiter | None = None, priority: int = 0) -> Request:
    made = Request(name, np.arange(8, dtype=np.int32), 4, priority=priority)
    made.deferred = deferred
    return made


def scheduler_of(*requests: Request, **settings: object) -> Scheduler:
    config = {"num_blocks": 32, "block_size": 4, "enable_prefix_caching": False, "max_model_len": 64, **settings}
    scheduler = Scheduler(SchedulerConfig(**config))  # type: ignore[arg-type]
    for one in requests:
        assert scheduler.add(one) is None
    return scheduler


def test_a_deferred_request_blocks_nobody_behind_it() -> None:
    scheduler = scheduler_of(request("a", Limiter.GRAMMAR), request("b"), request("c", Limiter.REMOTE_KV))
    assert scheduler.schedule(0.0).ids == ["b"]
    assert [waiting.id for waiting in scheduler.state.waiting] == ["a", "c"]
    assert scheduler.num_unfinished == 3
    head = scheduler.planned.head
    assert head is not None and (head.number, describe_head(head)) == (0, "deferred: grammar")
    assert scheduler.planned.limiter is Limiter.GRAMMAR


def test_once_ready_it_is_served_at_the_place_it_kept() -> None:
    scheduler = scheduler_of(request("a", Limiter.GRAMMAR), request("b"), request("c"), max_num_seqs=1)
    assert scheduler.schedule(0.0).ids == ["b"]
    head = scheduler.planned.head
    assert head is not None and (head.number, head.reason) == (2, Limiter.SEQUENCE_CAP), "the first that is ready"
    scheduler.make_ready(0)
    assert [waiting.id for waiting in scheduler.state.waiting] == ["a", "c"]
    scheduler.abort(1, 0.0)
    assert scheduler.schedule(1.0).ids == ["a"]


def test_by_priority_a_ready_request_goes_where_its_urgency_puts_it() -> None:
    scheduler = scheduler_of(
        request("a", priority=2),
        request("b", Limiter.GRAMMAR, priority=1),
        request("c", priority=0),
        policy="priority",
        max_num_seqs=1,
    )
    assert scheduler.schedule(0.0).ids == ["c"]
    scheduler.make_ready(1)
    assert [waiting.id for waiting in scheduler.state.waiting] == ["b", "a"]


def test_a_deferred_request_can_be_aborted_and_readiness_of_one_that_ended_is_nothing() -> None:
    scheduler = scheduler_of(request("a", Limiter.STREAMING_INPUT))
    finish = scheduler.abort(0, 0.0)
    assert finish is not None and finish.reason == "abort"
    scheduler.make_ready(0)
    assert scheduler.num_unfinished == 0 and list(scheduler.state.waiting) == []


def test_records_count_the_deferred_by_reason_and_tell_who_became_ready() -> None:
    scheduler = scheduler_of(request("a", Limiter.GRAMMAR), request("b", Limiter.GRAMMAR))
    scheduler.add(request("c", Limiter.REMOTE_KV))
    observer = Observer(scheduler)
    assert observer.has_events, "who is deferred has to be told"
    record = observer.idle_record(0.0, 0, False)
    assert record.deferred == (("grammar", 2), ("remote_kv", 1)) and record.waiting == 3
    figures = dict(zip(COLUMNS, row_of(record), strict=True))
    assert (figures["deferred_grammar"], figures["deferred_remote_kv"], figures["deferred_stale_output"]) == (
        2,
        1,
        0,
    )
    assert record.deferrals == (Deferral(0, "grammar"), Deferral(1, "grammar"), Deferral(2, "remote_kv"))
    assert [state.deferred for state in observer.snapshot(0.0, {}, 0, False).requests] == [
        "grammar",
        "grammar",
        "remote_kv",
    ]
    scheduler.make_ready(1)
    record = observer.idle_record(1.0, 0, False)
    assert record.deferrals == (Deferral(1),)
    assert record.deferred == (("grammar", 1), ("remote_kv", 1))
