"""The conditions of `schedtop check`, and how each one is parsed."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from schedtop.engine.contract.nearest_name import did_you_mean

LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue")
STATISTICS = ("p50", "p90", "p95", "p99", "max", "mean", "n")
COUNTS = {
    "preemptions": "preemptions",
    "loops": "preempt and re-admit loops",
    "refusals": "requests refused",
    "aborts": "requests aborted",
    "kv_capacity": "requests cut off because the pool was full",
    "knob_changes": "limits changed",
    "submitted": "requests submitted",
    "finished": "requests finished",
    "steps": "steps",
    "output_tokens": "output tokens",
    "recomputed_tokens": "tokens computed again",
    "rejected_draft_tokens": "rejected drafts",
}
SHARES = ("hit_rate", "budget_use", "peak_kv_usage", "goodput")
RATES = ("output_tokens_per_s", "requests_per_s")
ABSENT = {"preemptions", "loops", "refusals", "aborts", "kv_capacity", "knob_changes"}
"""The events that `no NAME` may name."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_CONDITION = re.compile(r"([a-z_0-9]+)(?:\.([a-z0-9]+))?(<=|>=|==|!=|<|>|=)([0-9]*\.?[0-9]+)([a-z%]*)", re.ASCII)


class ConditionError(ValueError):
    """An unreadable condition; the text shows it and says what to write."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`figure` (and for a latency its `statistic`) compared with `limit`, in seconds, counts or shares."""

    text: str
    figure: str
    statistic: str
    relation: str
    limit: float

    def holds(self, value: float) -> bool:
        return _OPERATORS[self.relation](value, self.limit)

    @property
    def bounds_above(self) -> bool:
        """The figure must stay low: its largest contribution is what breaks it."""
        return self.relation in ("<", "<=", "==")


def parse_condition(text: str) -> Condition:
    """`ttft.p95<1s`, `preemptions==0`, `hit_rate>=50%` or `no loops`. Raises `ConditionError`."""
    words = text.split()
    if len(words) == 2 and words[0].lower() == "no":
        name = words[1].lower().replace("-", "_")
        if name not in ABSENT:
            raise ConditionError(f"{text!r}: after `no` write one of {', '.join(sorted(ABSENT))}")
        return Condition(text, name, "", "==", 0.0)
    found = _CONDITION.fullmatch("".join(words).lower())
    if found is None:
        raise ConditionError(
            f"{text!r}: write FIGURE, one of < <= == != >= >, and a number, as in ttft.p95<1s, or no NAME"
        )
    figure, statistic, relation, number, unit = found.groups(default="")
    if relation == "=":
        raise ConditionError(f"{text!r}: write == for equal")
    _check_names(text, figure, statistic)
    return Condition(text, figure, statistic, relation, _limit(text, figure, statistic, float(number), unit))


def _check_names(text: str, figure: str, statistic: str) -> None:
    if figure in LATENCIES:
        if statistic not in STATISTICS:
            raise ConditionError(f"{text!r}: write {figure}.NAME with NAME one of {', '.join(STATISTICS)}")
        return
    if figure not in (*COUNTS, *SHARES, *RATES):
        hint = did_you_mean(figure, (*LATENCIES, *COUNTS, *SHARES, *RATES))
        known = ", ".join((*(f"{name}.p95" for name in LATENCIES), *COUNTS, *SHARES, *RATES))
        raise ConditionError(f"{text!r}: no figure is called {figure!r}; {hint}there are {known}")
    if statistic:
        raise ConditionError(f"{text!r}: {figure} is one number; leave out .{statistic}")


def _limit(text: str, figure: str, statistic: str, number: float, unit: str) -> float:
    if not math.isfinite(number):
        raise ConditionError(f"{text!r}: the number is too large")
    if figure in LATENCIES and statistic != "n":
        if unit not in _UNITS:
            raise ConditionError(f"{text!r}: a time needs a unit, one of {', '.join(_UNITS)}")
        return number * _UNITS[unit]
    if unit == "%" and figure in SHARES:
        number, unit = number / 100, ""
    if unit:
        raise ConditionError(f"{text!r}: {figure} takes no unit {unit!r}")
    if figure in SHARES and number > 1:
        raise ConditionError(f"{text!r}: {figure} is a share; write a number up to 1, or a percentage up to 100%")
    return number
