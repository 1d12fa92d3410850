"""What happened, one line each: admissions, preemptions, knob changes, refusals, finishes, notices, gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from schedtop.console.drawing import text
from schedtop.engine.contract.telemetry import (
    Admission,
    Finish,
    FinishReason,
    KnobChange,
    Notice,
    Preemption,
    Refusal,
    StepRecord,
)

KINDS = {
    "A": "admitted",
    "V": "preempted",
    "K": "knob changed",
    "X": "refused",
    "F": "finished",
    "E": "ended early",
    "P": "engine paused or resumed",
    "N": "notice",
    "G": "records missing",
}


_EARLY = (FinishReason.ABORT, FinishReason.KV_CAPACITY)


class Event(msgspec.Struct, frozen=True, gc=False):
    """One happening. `name` is the request it is about, `other` the one it happened for (already cleaned)."""

    kind: str
    seq: int
    step: int
    clock_s: float
    detail: Any
    name: str = ""
    other: str = ""

    @property
    def number(self) -> int | None:
        """The request it is about; None where it is about none."""
        return getattr(self.detail, "number", None)

    def describe(self, short: bool = False) -> str:
        """The line without its time and letter; a short one leaves out what the letter says."""
        detail = self.detail
        match detail:
            case Admission():
                words = f"{self.name} waited={text.duration(detail.waited_s)}"
                words += f" cached={detail.cached_tokens}" if detail.cached_tokens else ""
                return words + (" resumed" if detail.resumed else "")
            case Preemption():
                loop = " LOOP" if detail.loop else ""
                why = loop if short else " kv-full"
                other = "itself" if detail.for_number == detail.number else self.other
                what = "swapped" if detail.swapped else "lost"
                words = f"{self.name}{why} for={other} freed={detail.freed_blocks} {what}={detail.lost_tokens}"
                words += f" #{detail.count}" if detail.count > 1 else ""
                return words + ("" if short else loop)
            case KnobChange():
                by = f" by={text.clean(detail.by, 40)}" if detail.by else ""
                return f"{text.clean(detail.name)} {text.value(detail.old)}→{text.value(detail.new)}{by}"
            case Refusal():
                return f"{self.name} {_refusal(detail)}"
            case Finish():
                words = f"{self.name} {text.clean(detail.reason)} out={detail.output_tokens}"
                return words + (f" e2e={text.duration(detail.e2e_s)}" if detail.e2e_s is not None else "")
            case Notice():
                return f"{text.clean(detail.level)}: {text.clean(detail.text)}"
        return text.clean(detail)


def _refusal(refusal: Refusal) -> str:
    words = text.clean(refusal.reason)
    if refusal.need is None or refusal.capacity is None:
        return words
    return f"{words}: needs {refusal.need}, capacity {refusal.capacity}"


def of_record(record: StepRecord, was_paused: bool, name: Callable[[int], str]) -> Iterator[Event]:
    """The events of one record in the order they happened. `name` gives a request's cleaned id."""
    seq, step, clock_s = record.seq, record.step, record.end_s
    for change in record.knobs:
        yield Event("K", seq, step, clock_s, change)
    if record.paused != was_paused:
        by = f" by={text.clean(record.paused_by, 40)}" if record.paused_by else ""
        yield Event("P", seq, step, clock_s, ("engine paused" if record.paused else "engine resumed") + by)
    for refusal in record.refusals:
        yield Event("X", seq, step, clock_s, refusal, text.identity(refusal.id, 40))
    for preemption in record.preemptions:
        yield Event("V", seq, step, clock_s, preemption, name(preemption.number), name(preemption.for_number))
    for admission in record.admissions:
        yield Event("A", seq, step, clock_s, admission, name(admission.number))
    for finish in record.finishes:
        kind = "E" if finish.reason in _EARLY else "F"
        yield Event(kind, seq, step, clock_s, finish, name(finish.number))
