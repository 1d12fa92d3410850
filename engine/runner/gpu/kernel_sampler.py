"""Sampling on a GPU: every row's token in one launch, its settings in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.runner.errors import first_line
from schedtop.engine.runner.sampler import GREEDY, RowSampling
from schedtop.engine.runner.staging import Array, TensorStaging

GREEDY_ROW = RowSampling(GREEDY, 0)


class KernelSampler:
    """Picks tokens with the sampling kernel until it fails, which is reported once; the caller then picks them itself.

    Noise and ties are the kernel's own: a seed gives other tokens than on a CPU, the same ones in every batch.
    """

    def __init__(self, device: torch.device, tell: Callable[[str], None]) -> None:
        self._staging = TensorStaging(device)
        self._tell = tell
        self._failed = False

    def pick(
        self, logits: torch.Tensor, settings: Sequence[RowSampling | None], positions: IntArray
    ) -> IntArray | None:
        """Token ids int32 [M] of `logits` [M, vocab], None if the kernel cannot run.

        `settings` are the rows', None for greedy; `positions` are those of the new tokens.
        """
        if self._failed:
            return None
        try:
            return self._pick(logits, settings, positions)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler's failure has no type of its own
            self._failed = True
            self._tell(f"the sampling kernel failed ({first_line(error)}): sampling with torch")
            return None

    def _pick(self, logits: torch.Tensor, settings: Sequence[RowSampling | None], positions: IntArray) -> IntArray:
        from schedtop.kernels.sampling import sample
        from schedtop.kernels.sampling_params import SamplingTensors

        params = SamplingTensors(*self._staging(setting_arrays(settings, positions)))
        ids: IntArray = sample(logits, params).cpu().numpy().astype(np.int32)
        return ids


def setting_arrays(settings: Sequence[RowSampling | None], positions: IntArray) -> list[Array]:
    """The rows' settings as the kernel takes them: temperature, top_k, top_p, min_p, seeds, positions."""
    if not any(settings):
        settings = ()
    rows = [entry or GREEDY_ROW for entry in settings]
    count = len(positions)

    def column(values: list[float] | list[int], dtype: type[np.generic], greedy: float) -> Array:
        return np.array(values, dtype=dtype) if rows else np.full(count, greedy, dtype=dtype)

    return [
        column([row.params.temperature for row in rows], np.float32, 0.0),
        column([row.params.top_k for row in rows], np.int32, 0),
        column([row.params.top_p for row in rows], np.float32, 1.0),
        column([row.params.min_p for row in rows], np.float32, 0.0),
        column([wrap(row.seed) for row in rows], np.int64, 0),
        positions.astype(np.int64),
    ]


def wrap(seed: int) -> int:
    """`seed` modulo 2^64 as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
