"""What the engine's thread notes, in the engine's own order. Only holds references and numbers; computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class HeadSeen(NamedTuple):
    """The first waiting request that was not skipped (else the first), as a schedule left it.

    `hit_tokens`: found in the prefix cache, in `hit_blocks` places of each KV group's table; `revived` of their blocks
    were free.
    """

    id: str
    num_tokens: int
    status: str
    stale: bool
    lora: bool
    hit_tokens: int
    hit_blocks: tuple[int, ...]
    revived: int


class PreemptSeen(NamedTuple):
    """A preempted request: tokens it had computed, outputs and drafts of those that were under way, free blocks before
    and after, blocks handed out so far in the step."""

    id: str
    computed_tokens: int
    expected_tokens: int
    free_before: int
    free_after: int
    num_given: int


class Added(NamedTuple):
    """A request that the scheduler received. `hashes` are its prompt's block hashes."""

    at_s: float
    id: str
    prompt_tokens: int
    max_tokens: int
    priority: int
    hashes: tuple[bytes, ...]
    client_wait_s: float | None
    has_stop_strings: bool
    skips_cache: bool = False


class Ended(NamedTuple):
    """Requests ended from outside a step. `by_console`: at a console's request."""

    at_s: float
    ids: list[str]
    status: str
    by_console: bool


class Scheduled(NamedTuple):
    """One `schedule`: its output, times, limits in force, and the resulting state.

    `running` are the ids of all running requests where some got no tokens; `given` the first block of every handing
    out, for the beneficiaries of `preempted`.
    """

    output: Any
    began_s: float
    ended_s: float
    token_budget: int
    input_budget: int
    seq_cap: int
    threshold: int
    full_sequence: bool
    watermark_blocks: int
    num_running: int
    num_waiting: int
    num_free: int
    running: list[str] | None
    head: HeadSeen | None
    preempted: list[PreemptSeen]
    given: list[int]
    paused: bool
    throttled: bool


class Updated(NamedTuple):
    """One `update_from_output`, with the numbers running and waiting after it. `blocks` are triples of block id,
    references, 1 if it has content, end to end; `whole`: they are the whole pool."""

    output: Any
    outputs: Any
    began_s: float
    ended_s: float
    blocks: list[int]
    whole: bool
    num_free: int
    num_running: int
    num_waiting: int


class Drafted(NamedTuple):
    """The number of drafts each request has for its next step."""

    ids: list[str]
    counts: list[int]


class Applied(NamedTuple):
    """Limits set on the engine's thread, or why they were not."""

    at_s: float
    values: dict[str, Any]
    by: str
    error: str


class PauseSeen(NamedTuple):
    """Admissions were paused or resumed."""

    at_s: float
    paused: bool
    by: str = ""


Event = Added | Ended | Scheduled | Updated | Drafted | Applied | PauseSeen


def is_step(event: Event) -> bool:
    """A schedule with an effect: it scheduled tokens or preempted a request."""
    return isinstance(event, Scheduled) and bool(event.output.num_scheduled_tokens or event.preempted)


def left_of(events: Iterable[Event]) -> Iterator[str]:
    """Requests ended from outside, or preempted."""
    for event in events:
        if isinstance(event, Ended):
            yield from event.ids
        elif isinstance(event, Scheduled):
            yield from (victim.id for victim in event.preempted)
