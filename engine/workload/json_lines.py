"""A line of JSON and the values in it, checked."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from schedtop.engine.workload.fields import token_count
from schedtop.engine.workload.trace import BadRowError, PrefixIds


def json_object(line: bytes) -> dict[str, Any]:
    """The object on a line; raises `BadRowError`."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadRowError("not a line of JSON", line[:64]) from None
    if not isinstance(value, dict):
        raise BadRowError("not a JSON object", line[:64])
    return value


def positive(row: dict[str, Any], name: str) -> int:
    """A length in tokens that is not 0; raises `BadRowError`."""
    number = token_count(row.get(name), name)
    if number == 0:
        raise BadRowError(f"{name} is 0")
    return number


def prefix_ids(value: object) -> PrefixIds | None:
    """Ids as uint64; larger or negative ones wrap. Raises `BadRowError`."""
    if value is None or value == []:
        return None
    try:
        if not isinstance(value, list):
            raise TypeError
        return np.array([number & 0xFFFFFFFFFFFFFFFF for number in value], dtype=np.uint64)
    except TypeError:
        raise BadRowError("hash_ids is not a list of whole numbers", value) from None
