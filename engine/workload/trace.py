"""What every trace reader yields, how it reports what it cannot use, and the list readers add themselves to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Image

PrefixIds = npt.NDArray[np.uint64]


class TraceError(ConfigError):
    """A trace that cannot be used. The text is one line, which begins with `file:` or `file:line:`."""


class BadRowError(ValueError):
    """Why one row cannot be used. `reason` has few different texts, so rows can be counted by it."""

    def __init__(self, reason: str, value: object = None) -> None:
        self.reason = reason
        super().__init__(reason if value is None else f"{reason}: {_short(value)}")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `line` is its line in the file, from 1 (in result files: its ordinal).

    `time_s` counts from any zero; None where the format has no times. `prefix_ids` names the prompt's leading
    blocks: equal ids in equal places are equal tokens. `text` is the prompt as UTF-8, where the trace has one;
    `prompt_tokens` is then 0, the text decides. `place` is the request's among several of its line. `adapter` names its
    LoRA adapter; rows of one `parent` are its
    children. `images` are a number; where their places are known, they are in `placed_images`.
    """

    line: int
    time_s: float | None
    prompt_tokens: int
    output_tokens: int
    prefix_ids: PrefixIds | None = None
    text: bytes | None = None
    priority: int = 0
    id: str | None = None
    place: int | None = None
    adapter: str = ""
    images: int = 0
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    parent: str = ""
    placed_images: tuple[Image, ...] = ()


@dataclass(slots=True)
class Trace:
    """An opened trace: rows in file order, and what a reader knows about all of them.

    `block_tokens`: prompt tokens per prefix id; with `exact_ids` the last id may
    stand for fewer, and every token has one. `rate`: requests/s, for a format without times (`inf`: all at
    once). `texts`: prompts are texts. `notes` are facts an operator should see, one line each. `times` is the unit of
    its time stamps, in words. `client_waits_s` are waits that the client measured, which no engine sees.
    """

    format: str
    rows: Iterator[TraceRow]
    timed: bool = True
    block_tokens: int | None = None
    exact_ids: bool = False
    rate: float | None = None
    texts: bool = False
    times: str = "seconds"
    client_waits_s: list[float] = field(default_factory=list)
    image_column: str = ""
    notes: list[str] = field(default_factory=list)


class Tally:
    """Counts what a reader passes over: `dropped` by a format's own rule, `bad` only if the operator allowed it.

    `noticed` rows are used, but something about them is not as their format says.
    """

    def __init__(self, name: str, skip_bad: bool = False, pooling: bool = False) -> None:
        self.name = name
        self.skip_bad = skip_bad
        self.pooling = pooling
        self.bad: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.noticed: Counter[str] = Counter()
        self.first_lines: dict[str, int] = {}

    def reject(self, line: int, error: BadRowError) -> None:
        """Count a bad row; raises `TraceError` with file, line and reason unless bad rows are to be skipped."""
        if not self.skip_bad:
            raise TraceError(f"{self.name}:{line}: {error}") from None
        self._count(self.bad, error.reason, line)

    def drop(self, reason: str, line: int) -> None:
        """Count a row that its format says is not a request to serve."""
        self._count(self.dropped, reason, line)

    def notice(self, reason: str, line: int) -> None:
        """Count a row that is used differently from what it says."""
        self._count(self.noticed, reason, line)

    def _count(self, counter: Counter[str], reason: str, line: int) -> None:
        counter[reason] += 1
        self.first_lines.setdefault(reason, line)

    def counts(self) -> dict[str, dict[str, int]]:
        """What was counted so far, by reason; kinds of which there is nothing are left out."""
        kinds = {"skipped_bad": self.bad, "dropped": self.dropped, "noticed": self.noticed}
        return {kind: dict(counter) for kind, counter in kinds.items() if counter}


@dataclass(frozen=True, slots=True)
class FileReader:
    """A kind of trace file other than text, such as a recording.

    `matches` is given the file's first `HEAD_BYTES` bytes, as stored; `read` may raise `TraceError`, and reports
    rows it cannot use to the tally. `accepts` is how messages name the kind.
    """

    name: str
    accepts: str
    matches: Callable[[bytes], bool]
    read: Callable[[Path, Tally], Trace]


HEAD_BYTES = 256
READERS: list[FileReader] = []


def register_reader(reader: FileReader) -> None:
    """Let `reader` be tried on every trace file, before the text formats; a second one of its name replaces it."""
    READERS[:] = [other for other in READERS if other.name != reader.name]
    READERS.append(reader)


WAITS_FOR_ANSWER = "whose arrival depends on the answer before it"
"""Of a request whose arrival another's end decides: a trace is replayed at times known beforehand."""

SERVING_COLUMNS = frozenset(
    [
        *("session_id", "session id"),
        *("delay", "think_time", "tool_wait_s", "cached_input_tokens"),
    ]
)
"""What would change how requests are served, and is not taken from a trace."""


def note_unused(names: Iterable[str], notes: list[str], unread: Container[str] = ()) -> None:
    """Note which columns or keys say something that is not used; `unread`: others, that only this format does not."""
    if unused := [name for name in names if name.lower() in SERVING_COLUMNS or name.lower() in unread]:
        notes.append(f"not used: {', '.join(unused)}")


def _short(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    shown = repr(text)
    return shown if len(shown) <= 48 else shown[:45] + "…"
