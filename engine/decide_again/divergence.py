"""Where two runs of the same requests diverge, and what they decided differently there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.sanitize import page
from schedtop.engine.contract.telemetry import StepRecord


class Part(msgspec.Struct, frozen=True):
    """One field of a step in both runs, in operator's terms."""

    field: str
    base: str
    variant: str


class Divergence(msgspec.Struct, frozen=True):
    """The first step that is not the same in both runs; `parts` says in what, most telling first.

    Its text has a line for each part and run, whatever the names in it.
    """

    step: int
    clock_s: float
    parts: list[Part]

    def __str__(self) -> str:
        width = max(len(part.field) for part in self.parts)
        lines = [f"step {self.step}, {self.clock_s:.3f} s"]
        for part in self.parts:
            lines.append(f"  {part.field:<{width}}  base     {part.base}")
            lines.append(f"  {'':<{width}}  variant  {part.variant}")
        return page(lines)


Ids = Mapping[int, str]


def first_difference(base: StepRecord | None, variant: StepRecord | None, ids: Ids) -> Divergence | None:
    """What differs between two records at the same place of both runs; None (a record) means a run's end.

    Limits themselves are not differences, only what was decided under them. `ids` names requests by number.
    """
    record = base or variant
    assert record is not None
    if base is None or variant is None:
        parts = [Part("end", *("over" if side is None else "goes on" for side in (base, variant)))]
        return Divergence(record.step, record.start_s, parts)
    if _same(base, variant):
        return None
    parts = [part for name, look in _FIELDS if (part := look(name, base, variant, ids)) is not None]
    return Divergence(base.step, base.start_s, parts) if parts else None


def _same(base: StepRecord, variant: StepRecord) -> bool:
    """A quick test that rules out most pairs: equal bytes mean equal decisions."""
    return (
        base.rows == variant.rows
        and base.limiter == variant.limiter
        and base.head == variant.head
        and base.end_s == variant.end_s
        and base.preemptions == variant.preemptions
        and base.finishes == variant.finishes
        and base.refusals == variant.refusals
    )


def _events(key: str, describe: Callable[[Any, Ids], str]) -> Callable[..., Part | None]:
    def look(name: str, base: StepRecord, variant: StepRecord, ids: Ids) -> Part | None:
        one, other = ([describe(event, ids) for event in getattr(record, key)] for record in (base, variant))
        return None if one == other else Part(name, *told_apart(one, other))

    return look


def told_apart(one: list[str], other: list[str]) -> tuple[str, str]:
    """Items that only one of two lists has; both lists whole if they differ only in order or number."""
    own = [text for text in one if text not in other], [text for text in other if text not in one]
    left, right = own if any(own) else (one, other)
    return _listed(left), _listed(right)


def _rows(name: str, base: StepRecord, variant: StepRecord, ids: Ids) -> Part | None:
    """Rows whose tokens differ; block counts are not decisions, and change with the block size."""
    sides = [_tokens_of(record) for record in (base, variant)]
    if list(sides[0].items()) == list(sides[1].items()):
        return None
    numbers = [number for number in {**sides[0], **sides[1]} if sides[0].get(number) != sides[1].get(number)]
    if not numbers:
        orders = [_listed([_name(ids, number) for number in side]) for side in sides]
        return Part(name, f"order {orders[0]}", f"order {orders[1]}")
    texts = [_listed([_row_text(ids, number, side.get(number)) for number in numbers]) for side in sides]
    return Part(name, *texts)


def _tokens_of(record: StepRecord) -> dict[int, tuple[int, int, int]]:
    """Tokens, drafts and tokens computed before, of each row that got any."""
    rows = row_columns(record)
    columns = (rows["request"], rows["tokens"], rows["drafts"], rows["computed"])
    return {
        number: (tokens, drafts, computed)
        for number, tokens, drafts, computed in zip(*(column.tolist() for column in columns), strict=True)
        if tokens
    }


def _row_text(ids: Ids, number: int, row: tuple[int, int, int] | None) -> str:
    if row is None:
        return f"{_name(ids, number)} nothing"
    tokens, drafts, computed = row
    text = f"{_name(ids, number)} {tokens:,} token{'s' if tokens != 1 else ''}"
    if drafts:
        text += f" ({drafts} draft{'s' if drafts != 1 else ''})"
    return f"{text} after {computed:,}"


def _limiter(name: str, base: StepRecord, variant: StepRecord, ids: Ids) -> Part | None:
    return None if base.limiter == variant.limiter else Part(name, base.limiter, variant.limiter)


def _head(name: str, base: StepRecord, variant: StepRecord, ids: Ids) -> Part | None:
    heads = (base.head, variant.head)
    keys = [None if head is None else (head.number, head.reason) for head in heads]
    if keys[0] == keys[1]:
        return None
    return Part(name, *("nobody" if h is None else f"{_name(ids, h.number)} ({describe_head(h)})" for h in heads))


def _time(name: str, base: StepRecord, variant: StepRecord, ids: Ids) -> Part | None:
    if base.end_s == variant.end_s:
        return None
    return Part(name, *(f"ends at {record.end_s:.6f} s" for record in (base, variant)))


def _name(ids: Ids, number: int) -> str:
    return ids.get(number, f"request {number}")


def _listed(texts: list[str], most: int = 3) -> str:
    if not texts:
        return "none"
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


_FIELDS: tuple[tuple[str, Callable[..., Part | None]], ...] = (
    ("refused", _events("refusals", lambda event, ids: f"{event.id}: {event.reason}")),
    ("preempted", _events("preemptions", lambda event, ids: _name(ids, event.number))),
    ("scheduled", _rows),
    ("admitted", _events("admissions", lambda event, ids: _name(ids, event.number))),
    ("limiter", _limiter),
    ("head of the queue", _head),
    ("finished", _events("finishes", lambda event, ids: f"{_name(ids, event.number)} ({event.reason})")),
    ("time", _time),
)
