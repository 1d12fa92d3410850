"""Requests wait although there is room: low use, the watermark, a head that blocks others, inverted priority."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from scenes import Run, ask, numbers, serve, stream
from schedtop.engine.contract.telemetry import Head


def large(blocks: int, full: bool = True) -> Run:
    """A small request that goes on, and large ones behind it."""
    return serve(
        [ask(0, 200, 1500), *(ask(i, 3000, 1500, 0.05) for i in range(1, 5))],
        5,
        num_blocks=blocks,
        max_num_batched_tokens=1024,
        scheduler_reserve_full_isl=full,
    )


def watermarked(share: float) -> Run:
    return serve(stream(300, 0.05, 400, 200), 12, num_blocks=600, watermark=share)


def blocked(head: int, behind: int = 100) -> Run:
    """A request holds most of the pool, a prompt of `head` tokens waits, and small ones come behind it."""
    requests = [ask(0, 4000, 1500), ask(1, head, 10, 0.1), *stream(10, 0.05, behind, 10, start_s=0.2)]
    return serve(requests, 4, num_blocks=400)


def ranked(urgent: int, cap: int) -> Run:
    """Four patient requests run; from 0.5 s on others come with the priority `urgent`."""
    requests = [ask(i, 20, 4000, priority=1) for i in range(4)]
    requests += stream(10, 0.2, 50, 20, start_s=0.5, priority=urgent)
    return serve(requests, 4, max_num_seqs=cap, policy="priority")


def test_a_queue_beside_empty_steps_names_the_check() -> None:
    run = large(300)
    finding = run.findings()["queue-low-use"]
    reported, queued = numbers(finding), [r for r in run.window() if r.waiting]
    reasons = [r.head.reason if r.head else r.limiter for r in queued]
    main = max(set(reasons), key=reasons.count)
    assert reported["reason"] == main
    assert reported["reason_share"] == pytest.approx(reasons.count(main) / len(reasons))
    heads = [r.head for r in queued if r.head and r.head.reason == main]
    assert reported["need"] == pytest.approx(np.mean([h.need for h in heads if h.need is not None]))
    assert reported["have"] == pytest.approx(np.mean([h.have for h in heads if h.have is not None]))
    use = sum(r.scheduled_tokens for r in queued) / sum(r.token_budget for r in queued)
    assert reported["budget_use"] == pytest.approx(use)
    assert use < 0.5
    assert finding.n == reasons.count(main)


def test_a_larger_pool_leaves_no_queue() -> None:
    assert large(3000).findings() == {}


def test_the_sequence_cap_with_few_first_tokens() -> None:
    run = serve([ask(i, 100, 3000) for i in range(12)], 5, max_num_seqs=4)
    finding = run.findings()["queue-low-use"]
    assert numbers(finding)["reason"] == "sequence_cap"
    assert [(a.knob, a.direction) for a in finding.advice] == [("max_num_seqs", "up")]
    assert serve([ask(i, 100, 3000) for i in range(12)], 5, max_num_seqs=12).findings() == {}


def test_the_watermark_as_the_limiter() -> None:
    run = watermarked(0.4)
    finding = run.findings()["watermark-holds"]
    reported, queued = numbers(finding), [r for r in run.window() if r.waiting]
    heads = [r.head for r in queued if r.head and r.head.reason == "watermark"]
    assert reported["watermark_share"] == pytest.approx(len(heads) / len(queued))
    assert reported["reserve_blocks"] == pytest.approx(np.mean([h.reserve for h in heads]))
    assert reported["free_blocks"] == pytest.approx(np.mean([h.have for h in heads if h.have is not None]))
    assert all(h.need is not None and h.have is not None and h.need <= h.have for h in heads)
    assert [(a.knob, a.direction, a.now) for a in finding.advice] == [("watermark", "down", "0.4")]
    assert set(run.findings()) == {"overload", "watermark-holds"}


def test_no_watermark_is_another_limiter() -> None:
    assert "watermark-holds" not in watermarked(0.0).findings()


def test_a_head_that_blocks_smaller_requests() -> None:
    run = blocked(4000)
    finding = run.findings()["head-blocks-smaller"]
    reported, last = numbers(finding), run.records[-1]
    assert last.head is not None
    assert reported["number"] == last.head.number == 1
    rows = []
    for record in reversed(run.records):
        if record.head is None or record.head.number != 1 or record.waiting < 2:
            break
        rows.append(record)
    assert reported["steps"] == len(rows)
    room = min(r.head.have - r.head.reserve for r in rows if r.head and r.head.have is not None)
    arrived = {a.number: a for r in run.records for a in r.arrivals}
    admitted = {a.number for r in run.records for a in r.admissions}
    behind = [a for n, a in arrived.items() if n not in admitted and n != 1]
    fitting = [a for a in behind if -(-a.prompt_tokens // 16) <= room]
    assert finding.n == reported["fitting"] == len(fitting) == 10
    assert reported["behind"] == len(behind)


def test_a_head_from_before_a_gap_is_not_counted_behind_itself() -> None:
    run = blocked(4000)
    smalls = next(index for index, r in enumerate(run.records) if any(a.number == 2 for a in r.arrivals))
    del run.records[smalls - 1]
    reported = numbers(run.findings()["head-blocks-smaller"])
    assert reported["behind"] == reported["fitting"] == 10


@pytest.mark.parametrize(("head", "behind"), [(1000, 100), (4000, 3900)])
def test_a_head_that_fits_or_others_that_do_not(head: int, behind: int) -> None:
    assert "head-blocks-smaller" not in blocked(head, behind).findings()


def test_inverted_priority() -> None:
    run = ranked(-1, 4)
    finding = run.findings()["inverted-priority"]
    reported = numbers(finding)
    inverted = [bool(r.head and r.head.inverted) for r in run.window()]
    assert finding.n == sum(inverted)
    assert reported["inverted_share"] == pytest.approx(np.mean(inverted))
    assert reported["steps"] == longest(inverted)
    assert reported["reason"] == "sequence_cap"
    assert "priority -1" in finding.links[0].words
    assert finding.advice[0].knob == "max_num_seqs"


def advised(reason: str, **scheduler: Any) -> list[tuple[str, str]]:
    """What is advised where the records of an inversion say that `reason` holds the head."""
    requests = [ask(i, 20, 4000, priority=1) for i in range(4)]
    requests += stream(10, 0.2, 50, 20, start_s=0.5, priority=-1)
    run = serve(requests, 4, max_num_seqs=4, policy="priority", **scheduler)
    run.records = [
        msgspec.structs.replace(r, head=msgspec.structs.replace(r.head, reason=reason)) if r.head else r
        for r in run.records
    ]
    return [(a.knob, a.direction) for a in run.findings()["inverted-priority"].advice]


@pytest.mark.parametrize(
    ("reason", "scheduler", "advice"),
    [
        ("token_budget", {}, [("max_num_batched_tokens", "up"), ("long_prefill_token_threshold", "on (0 is off)")]),
        (
            "token_budget",
            {"max_num_scheduled_tokens": 512, "long_prefill_token_threshold": 64},
            [("max_num_scheduled_tokens", "up"), ("long_prefill_token_threshold", "down")],
        ),
        ("blocks", {}, [("num_blocks", "up")]),
        ("full_sequence", {}, [("scheduler_reserve_full_isl", "off"), ("num_blocks", "up")]),
        ("watermark", {}, [("watermark", "down")]),
        ("chunking_off", {}, [("max_num_batched_tokens", "up"), ("enable_chunked_prefill", "on")]),
        ("preempted_now", {}, [("max_num_seqs", "down"), ("watermark", "up")]),
        ("paused", {}, []),
    ],
)
def test_advice_is_about_what_holds_the_head(
    reason: str, scheduler: dict[str, Any], advice: list[tuple[str, str]]
) -> None:
    assert advised(reason, **scheduler) == advice


def test_a_server_is_told_its_own_flags() -> None:
    """What its start-up values bound, or it cannot turn at all, takes a restart; in the embedded engine it does not."""
    requests = [ask(i, 20, 4000, priority=1) for i in range(4)]
    requests += stream(10, 0.2, 50, 20, start_s=0.5, priority=-1)
    run = serve(requests, 4, max_num_seqs=4, policy="priority")
    titles = [advice.title for advice in run.findings()["inverted-priority"].advice]
    assert titles[0] == "max_num_seqs up (now 4)"
    config = {**run.header.config, "max_seqs_ceiling": 4}
    run.header = msgspec.structs.replace(run.header, source="vllm", config=config)
    reported = run.findings()["inverted-priority"].advice[0]
    assert reported.title == "max_num_seqs up (now 4), at start-up: --max-num-seqs" and not reported.live
    run.records = [
        msgspec.structs.replace(r, head=msgspec.structs.replace(r.head, reason="blocks")) if r.head else r
        for r in run.records
    ]
    (blocks,) = run.findings()["inverted-priority"].advice
    assert blocks.title.endswith("at start-up: --num-gpu-blocks-override")


def test_a_head_without_numbers_tells_none() -> None:
    """Who waits after a preemption in the same step was not judged: nothing is known of its need."""
    run = large(300)
    run.records = [
        msgspec.structs.replace(r, head=Head(r.head.number, "preempted_now")) if r.head else r for r in run.records
    ]
    reported = numbers(run.findings()["queue-low-use"])
    assert reported["reason"] == "preempted_now"
    assert not {"need", "have"} & set(reported)


@pytest.mark.parametrize(("urgent", "cap"), [(1, 4), (-1, 16)])
def test_equal_priority_or_room_is_not_inverted(urgent: int, cap: int) -> None:
    assert "inverted-priority" not in ranked(urgent, cap).findings()


def longest(flags: list[bool]) -> int:
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best


@pytest.mark.parametrize("bare", [lambda head: None, lambda head: Head(head.number, head.reason)])
@pytest.mark.parametrize("scene", [lambda: blocked(3000), lambda: large(300), lambda: watermarked(0.5)])
def test_a_head_without_its_numbers_is_no_evidence(
    scene: Callable[[], Run], bare: Callable[[Head], Head | None]
) -> None:
    run = scene()
    reported = {"head-blocks-smaller", "queue-low-use", "watermark-holds"}
    assert reported & run.findings().keys()
    records = [msgspec.structs.replace(r, head=bare(r.head)) if r.head else r for r in run.records]
    assert not reported & dataclasses.replace(run, records=records).findings().keys()
