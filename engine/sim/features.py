"""The features that a step's time depends on: four sums over its rows, used by simulation and calibration."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class StepFeatures(NamedTuple):
    """One step's work.

    `tokens`: positions computed. `kv_tokens`: context read, every row's once. `attention_pairs`: (query, key)
    pairs of the rows with more than one token, whose attention is arithmetic more than reading. `requests`:
    rows. A step of decodes alone has `tokens == requests` and no pairs.
    """

    tokens: float
    attention_pairs: float
    kv_tokens: float
    requests: float


class StepCost(Protocol):
    """A device's step times."""

    def step_s(self, features: StepFeatures) -> float:
        """Seconds; never falls when a feature grows. `kv_tokens` may be an array of them."""
        ...


def step_features(tokens: IntArray, computed: IntArray) -> StepFeatures:
    """Features of rows that compute `tokens[i]` positions after `computed[i]`; rows without tokens are skipped.

    Both int32, one entry per row: a plan's arrays, or the columns of a telemetry record. A chunk of n tokens
    after c attends to n * c + n (n + 1) / 2 pairs (causal).
    """
    requests = int(np.count_nonzero(tokens))
    if requests != len(tokens):
        scheduled = tokens > 0
        tokens, computed = tokens[scheduled], computed[scheduled]
    total = int(np.add.reduce(tokens))
    kv_tokens = total + int(np.add.reduce(computed))
    if total == requests:
        return StepFeatures(total, 0, kv_tokens, requests)
    chunk = (tokens > 1).nonzero()[0]  # few, if any
    chunks = zip(tokens[chunk].tolist(), computed[chunk].tolist(), strict=True)
    return StepFeatures(total, sum([n * c + n * (n + 1) // 2 for n, c in chunks]), kv_tokens, requests)
