"""Arrays packed into one copy come out as they went in."""

from __future__ import annotations

import numpy as np
import torch
from schedtop.engine.runner.staging import ALIGNMENT_BYTES, StaticInputs, TensorStaging

CPU = torch.device("cpu")


def arrays(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
    return [
        rng.integers(0, 99, rows),
        rng.integers(0, 99, rows + 1).astype(np.int32),
        rng.integers(0, 99, (rows, 3)).astype(np.int32)[:, :2],
        rng.random(rows).astype(np.float32),
        np.zeros(0, dtype=np.int64),
    ]


def test_shapes_dtypes_and_contents_survive() -> None:
    rng = np.random.default_rng(1)
    staging = TensorStaging(CPU, packs=True)
    # The steps before stay as they were, whatever is staged after them.
    steps = [(given := arrays(rng, rows), staging(given)) for rows in (3, 1, 40, 2, 700)]
    for given, tensors in steps:
        for array, tensor in zip(given, tensors, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
            assert tensor.is_contiguous()
            assert tensor.storage_offset() * tensor.itemsize % ALIGNMENT_BYTES == 0


def test_cpu_tensors_are_not_copied() -> None:
    given = np.arange(3)
    (tensor,) = TensorStaging(CPU)([given])
    given[0] = 7
    assert tensor[0] == 7


def test_static_inputs_keep_their_addresses() -> None:
    inputs = StaticInputs([np.full(3, -1), np.zeros((2, 2), dtype=np.int32)], CPU)
    first, second = inputs.tensors
    assert first.tolist() == [-1, -1, -1]
    inputs.wait()
    inputs.arrays[0][:] = (4, 5, 6)
    inputs.arrays[1][1, 0] = 8
    assert first.tolist() == [-1, -1, -1]
    inputs.send()
    assert first.tolist() == [4, 5, 6]
    assert second.tolist() == [[0, 0], [8, 0]]
