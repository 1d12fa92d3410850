"""A finding: its causal chain, the steps it rests on, and the knob it suggests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from schedtop.console.drawing import text
from schedtop.engine.contract.knobs import BY_NAME

Number = int | float | str | bool | None
Numbers = dict[str, Number]

_MS_BELOW_S = 0.9995


class Severity(IntEnum):
    """`NOTICE`: worth knowing; `WARNING`: requests are slower than need be; `SEVERE`: work is lost or stuck."""

    NOTICE = 1
    WARNING = 2
    SEVERE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class CausalLink:
    """One link of a causal chain; the next one is its cause. `numbers` are what `words` rests on."""

    words: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRange:
    """Consecutive records that show it: inclusive `seq`s to jump to, and the step numbers they have."""

    first_seq: int
    last_seq: int
    first_step: int
    last_step: int
    words: str = ""

    @property
    def label(self) -> str:
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step}-{self.last_step}"


@dataclass(frozen=True, slots=True)
class Advice:
    """A knob and which way to turn it. `knob` empty: the remedy is not a knob.

    `then` is its value at the moment of the evidence, where it has changed since. `flag` is the server's own flag where
    it cannot turn the knob so far while it runs.
    """

    knob: str
    direction: str
    now: str = ""
    words: str = ""
    then: str = ""
    flag: str = ""

    @property
    def live(self) -> bool:
        """Whether a change while the engine runs would do it."""
        return bool(self.knob) and not self.flag and BY_NAME[self.knob].live

    @property
    def title(self) -> str:
        """`max_num_seqs up (now 8)`; for a remedy that is not a knob, its words."""
        if not self.knob:
            return self.words
        now = f" (now {self.now})" if self.now else ""
        start_up = "" if self.live else ", at start-up"
        return f"{self.knob} {self.direction}{now}{start_up}" + (f": {self.flag}" if self.flag else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis of one window of `window_s` seconds and `num_steps` executed steps.

    `n` counts the samples it rests on, `what` names them. `links` run from symptom to cause.
    """

    id: str
    title: str
    severity: Severity
    links: tuple[CausalLink, ...]
    steps: tuple[StepRange, ...]
    advice: tuple[Advice, ...]
    n: int
    what: str
    window_s: float = 0.0
    num_steps: int = 0
    from_s: float = 0.0
    to_s: float = 0.0


def as_dict(finding: Finding) -> dict[str, Any]:
    """A finding as plain JSON values."""
    return {
        "id": finding.id,
        "title": finding.title,
        "severity": finding.severity.word,
        "chain": [{"words": link.words, "numbers": link.numbers} for link in finding.links],
        "steps": [asdict(part) for part in finding.steps],
        "advice": [
            {
                "knob": advice.knob or None,
                "direction": advice.direction,
                "now": advice.now,
                "words": advice.words,
                "then": advice.then or None,
                "live": advice.live if advice.knob else None,
                "flag": advice.flag or None,
            }
            for advice in finding.advice
        ],
        "n": finding.n,
        "what": finding.what,
        "window_s": finding.window_s,
        "num_steps": finding.num_steps,
        "from_s": finding.from_s,
        "to_s": finding.to_s,
    }


def seconds(value: float) -> str:
    """`46.7 ms` or `2.31 s`."""
    return f"{value * 1e3:.1f} ms" if value < _MS_BELOW_S else f"{value:.2f} s"


def some(number: float, noun: str) -> str:
    """`1 block`, `12 blocks`; a mean is reported as a whole number."""
    return text.plural(round(number), noun)


def percent(share: float) -> str:
    """A share as a whole percentage; what is neither nothing nor all is never rounded to it."""
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{100 * share:.0f} %"
