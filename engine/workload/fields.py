"""Numbers and time stamps as traces write them, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

from schedtop.engine.workload.trace import BadRowError

MAX_TOKENS = 2**31 - 1
MAX_TIME_S = 1e12

TimeParser = Callable[[bytes, str], float]


def token_count(value: object, name: str) -> int:
    """A length in tokens from 12, 12.0, "12" or "12.0"; raises `BadRowError` for anything else."""
    if isinstance(value, bytes) and len(value) < 10 and value.isdigit():
        return int(value)
    number = _number(value, name)
    if not number.is_integer():
        raise BadRowError(f"{name} is not a whole number", value)
    if not 0 <= number <= MAX_TOKENS:
        raise BadRowError(f"{name} is {'negative' if number < 0 else 'out of range'}", value)
    return int(number)


PRIORITY_COLUMN = "priority"
MAX_PRIORITY = 2**31 - 1


def priority(value: object) -> int:
    """A request's priority, the lowest the most urgent; 0 where nothing is given. Raises `BadRowError`."""
    if value is None or value in (b"", ""):
        return 0
    number = _number(value, PRIORITY_COLUMN)
    if not number.is_integer() or abs(number) > MAX_PRIORITY:
        raise BadRowError(f"{PRIORITY_COLUMN} is not a whole number", value)
    return int(number)


ADAPTER_COLUMNS = ("lora", "lora_name")
NO_ADAPTER = frozenset(("", "0", "none", "null"))


def adapter_name(value: object, name: str) -> str:
    """The LoRA adapter that a request asks for; empty for none. Raises `BadRowError` for what is not a name."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, bool) or not isinstance(text, str | int | None) or len(str(text)) > 200:
        raise BadRowError(f"{name} is not a name of an adapter", value)
    text = str(text or "").strip()
    return "" if text.lower() in NO_ADAPTER else text


IMAGE_COLUMNS = ("numimages", "num_images")
"""Lower-case, as a format's own columns are."""

SALT_COLUMN = "cache_salt"


def cache_salt(value: object) -> str | None:
    """The group whose prefixes a request may share; None for all. Raises `BadRowError` for what is not text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, bool) or not isinstance(text, str | int | None):
        raise BadRowError(f"{SALT_COLUMN} is not text", value)
    return str(text).strip() or None if text is not None else None


PARENT_COLUMN = "parent"


def parent(value: object) -> str:
    """What the children of one request have in common; empty for none. Raises `BadRowError` for what is not a name."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, bool) or not isinstance(text, str | int | None) or len(str(text)) > 200:
        raise BadRowError(f"{PARENT_COLUMN} is not a name", value)
    return "" if text is None else str(text).strip()


SKIP_COLUMN = "skip_reading_prefix_cache"
ROW_COLUMNS = frozenset(
    [*ADAPTER_COLUMNS, *IMAGE_COLUMNS, PRIORITY_COLUMN, SALT_COLUMN, PARENT_COLUMN, SKIP_COLUMN]
)
"""Optional fields of most formats."""

_TRUTH = {"": False, "0": False, "false": False, "1": True, "true": True}


def skips_prefix_cache(value: object) -> bool:
    """Whether a request skips the prefix cache; false by default. Raises `BadRowError`."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str("" if value is None else value)
    found = _TRUTH.get(text.strip().lower())
    if found is None:
        raise BadRowError(f"{SKIP_COLUMN} is neither true nor false", value)
    return found


def seconds(value: object, name: str) -> float:
    """A time in seconds from a number or its text; raises `BadRowError`."""
    number = _number(value, name)
    if abs(number) > MAX_TIME_S:
        raise BadRowError(f"{name} is out of range", value)
    return number


def plain_seconds() -> TimeParser:
    """A parser of plain numbers of seconds."""
    return seconds


def plain_milliseconds() -> TimeParser:
    """A parser of plain numbers of milliseconds."""
    return lambda value, name: seconds(value, name) / 1000


def date_stamps() -> TimeParser:
    """A parser of `2023-11-16 18:17:03.9799600`, with or without fraction and zone (none is UTC).

    It counts from the whole second of the first stamp it saw: 100 ns would be lost in a float of epoch seconds.
    """
    zero_s: int | None = None
    last_text, last_s = (b"", b""), 0

    def parse(value: bytes, name: str) -> float:
        nonlocal zero_s, last_text, last_s
        match = _STAMP.fullmatch(value)
        if match is None:
            raise BadRowError(f"{name} is not a date and time", value)
        text = (match[1], match[3] or b"")
        if text != last_text:
            last_s, last_text = _epoch_s(text, name), text
        if zero_s is None:
            zero_s = last_s
        return last_s - zero_s + (float(match[2]) if match[2] else 0.0)

    return parse


_STAMP = re.compile(rb"\s*(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?\s*")


def _epoch_s(text: tuple[bytes, bytes], name: str) -> int:
    try:
        stamp = datetime.fromisoformat((text[0] + text[1]).decode())
        aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        return round(aware.timestamp())
    except (ValueError, OverflowError):
        raise BadRowError(f"{name} is not a date and time", text[0] + text[1]) from None


def _number(value: object, name: str) -> float:
    if value is None or value in (b"", ""):
        raise BadRowError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
        raise BadRowError(f"{name} is not a number", value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise BadRowError(f"{name} is not a number", value) from None
    text = value if isinstance(value, bytes) else str(value).encode()
    if not math.isfinite(number) or b"_" in text:
        raise BadRowError(f"{name} is not a number", value)
    return number
