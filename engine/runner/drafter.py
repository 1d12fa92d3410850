"""Drafts by prompt look-up: what followed the last time the sequence ended like this."""

from __future__ import annotations

import numpy as np
from schedtop.engine.plan import IntArray

LONGEST_MATCH = 4
SHORTEST_MATCH = 2


def look_up(token_ids: IntArray, count: int) -> IntArray:
    """Up to `count` tokens that may follow `token_ids`: int32, empty where no ending was seen before.

    The longest ending of `LONGEST_MATCH` down to `SHORTEST_MATCH` tokens that occurs earlier decides, its latest
    occurrence first (Saxena, "Prompt Lookup Decoding", 2023).
    """
    size = len(token_ids)
    if count < 1 or size <= SHORTEST_MATCH:
        return token_ids[:0]
    ends = np.flatnonzero(token_ids[: size - 1] == token_ids[-1])
    best = ends[:0]
    for back in range(1, LONGEST_MATCH):
        ends = ends[ends >= back]
        ends = ends[token_ids[ends - back] == token_ids[size - 1 - back]] if size > back else ends[:0]
        if not ends.size:
            break
        if back + 1 >= SHORTEST_MATCH:
            best = ends
    if not best.size:
        return token_ids[:0]
    begin = int(best[-1]) + 1
    return token_ids[begin : begin + count]
