"""Two recordings side by side: where they first diverge, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from schedtop.engine.contract.sanitize import page
from schedtop.engine.contract.telemetry import Arrival, Header, KnobChange, StepRecord
from schedtop.engine.decide_again.divergence import Divergence, Part, first_difference, told_apart
from schedtop.engine.recording.reader import Recording

HEADER_FIELDS = (
    "engine",
    "engine_version",
    "model",
    "device",
    "policy",
    "block_size",
    "num_blocks",
    "max_model_len",
)


class Outside(msgspec.Struct, frozen=True):
    """Inputs since the last executed step."""

    arrivals: list[Arrival]
    knobs: list[KnobChange]


class RecordingDiff(msgspec.Struct, frozen=True, kw_only=True):
    """`settings` are what the engines were started with, `outside` what was asked of them otherwise up to the step
    where they part, `parts` what they decided otherwise there; `base` is A and `variant` is B in each.

    `step` None: the same steps from beginning to end.
    """

    a: str
    b: str
    settings: list[Part]
    step: int | None
    clock_s: float | None
    outside: list[Part]
    parts: list[Part]
    steps: tuple[int, int]

    @property
    def equal(self) -> bool:
        """Whether all decisions are the same, whatever the settings."""
        return self.step is None

    def as_text(self) -> str:
        """As text: where they diverge, in what, and the likely causes."""
        lines = [f"A  {self.a}  {self.steps[0]:,} steps", f"B  {self.b}  {self.steps[1]:,} steps"]
        lines += _block("started with", self.settings)
        if self.step is None:
            return page([*lines, "every step is the same"])
        lines.append(f"first difference at step {self.step}, {self.clock_s:.3f} s")
        lines += _block("decided", self.parts) + _block("asked from outside", self.outside)
        if not self.outside and not self.settings:
            lines.append("nothing asked of them differs before: the engines decide differently, or were timed so")
        return page(lines)


def _block(title: str, parts: list[Part]) -> list[str]:
    if not parts:
        return []
    width = max(len(part.field) for part in parts)
    lines = [title]
    for part in parts:
        lines += [f"  {part.field:<{width}}  A  {part.base}", f"  {'':<{width}}  B  {part.variant}"]
    return lines


def diff(a: Recording, b: Recording, on_progress: Callable[[int], None] = lambda index: None) -> RecordingDiff:
    """Compare two recordings step by step, skipping steps without work. Real times are not compared.

    `on_progress` gets the number of steps done. Raises `RecordingError` if a file proves damaged.
    """
    timed = a.header.simulated_clock and b.header.simulated_clock
    ids: dict[int, str] = {}
    outside: list[Part] = []
    found: Divergence | None = None
    for index, (left, right) in enumerate(zip_longest(_steps(a), _steps(b))):
        if index % 64 == 0:
            on_progress(index)
        if not outside:
            outside = _outside_parts(left, right)
        one, other = (None if side is None else side[1] for side in (left, right))
        for side in (left, right):
            ids.update((item.number, item.id) for item in (side[0].arrivals if side is not None else ()))
        if one is not None and other is not None and not timed:
            other = msgspec.structs.replace(other, start_s=one.start_s, end_s=one.end_s)
        found = first_difference(one, other, ids)
        if found is not None:
            break
    return RecordingDiff(
        a=a.path,
        b=b.path,
        settings=settings_parts(a.header, b.header),
        step=None if found is None else found.step,
        clock_s=None if found is None else found.clock_s,
        outside=[] if found is None else outside,
        parts=[] if found is None else found.parts,
        steps=(a.num_steps, b.num_steps),
    )


def _steps(recording: Recording) -> Iterator[tuple[Outside, StepRecord]]:
    """Each executed step, with the inputs before it."""
    arrivals: list[Arrival] = []
    knobs: list[KnobChange] = []
    for record in recording.records():
        arrivals += record.arrivals
        knobs += record.knobs
        if record.executed:
            yield Outside(arrivals, knobs), record
            arrivals, knobs = [], []


def _outside_parts(left: Any, right: Any) -> list[Part]:
    if left is None or right is None:
        return []
    parts = []
    asked = [[_asked(item) for item in side[0].arrivals] for side in (left, right)]
    turned = [[f"{item.name} {item.old} → {item.new}" for item in side[0].knobs] for side in (left, right)]
    for field, (one, other) in (("arrived", asked), ("knob", turned)):
        if one != other:
            where = f"{field} before step {left[1].step}"
            parts.append(Part(where, *told_apart(one, other)))
    return parts


def _asked(arrival: Arrival) -> str:
    return f"{arrival.id} ({arrival.prompt_tokens} in, up to {arrival.max_tokens} out)"


def settings_parts(a: Header, b: Header) -> list[Part]:
    """Where the start-up settings of two engines differ."""
    found = {name: (getattr(a, name), getattr(b, name)) for name in HEADER_FIELDS}
    for field in ("config", "settings", "workload"):
        left, right = getattr(a, field), getattr(b, field)
        for name in {**left, **right}:
            found.setdefault(name, (left.get(name), right.get(name)))
    return [Part(name, str(left), str(right)) for name, (left, right) in found.items() if left != right]
