"""A step's arrays on their way to the device: packed side by side, one copy that the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT_BYTES = 64
"""Kernels are recompiled for pointers of another alignment."""

FIRST_BYTES = 1 << 12

Array = npt.NDArray[Any]

DTYPES = {np.dtype(name): getattr(torch, name) for name in ("int32", "int64", "float32")}


class PinnedBytes:
    """Host memory a GPU reads by itself. `wait` before writing to it: the last copy may still be under way."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=cuda)
        self._sent = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self.array: npt.NDArray[np.uint8] = self._host.numpy()

    def wait(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, target: torch.Tensor) -> None:
        """Copy the first bytes to `target`, uint8 on the device, behind what the stream does now."""
        target.copy_(self._host[: target.shape[0]], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


class TensorStaging:
    """Takes arrays to tensors on `device`. Two buffers take turns, so that one can be filled while one is read.

    `packs`: whether to go through them; on a CPU, where tensors can share the arrays' memory, only tests do.
    """

    def __init__(self, device: torch.device, packs: bool | None = None) -> None:
        self._device = device
        self._packs = device.type != "cpu" if packs is None else packs
        self._buffers = [PinnedBytes(FIRST_BYTES, device) for _ in range(2)]

    def __call__(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """One tensor per array, same shapes and dtypes."""
        if not self._packs:
            return [torch.from_numpy(array) for array in arrays]
        ends = pack_ends(arrays)
        self._buffers.reverse()
        buffer = self._buffers[0]
        if buffer.array.size < ends[-1]:
            buffer = self._buffers[0] = PinnedBytes(2 * ends[-1], self._device)
        buffer.wait()
        for view, array in zip(views(buffer.array, arrays, ends), arrays, strict=True):
            view[...] = array
        target = torch.empty(ends[-1], dtype=torch.uint8, device=self._device)
        buffer.send(target)
        return tensor_views(target, arrays, ends)


class StaticInputs:
    """Tensors whose addresses stay, `tensors`, and the host arrays they are filled from, `arrays`."""

    def __init__(self, templates: Sequence[Array], device: torch.device) -> None:
        ends = pack_ends(templates)
        self._buffer = PinnedBytes(ends[-1], device)
        self._target = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self.arrays = views(self._buffer.array, templates, ends)
        self.tensors = tensor_views(self._target, templates, ends)
        for array, template in zip(self.arrays, templates, strict=True):
            array[...] = template
        self.send()

    def wait(self) -> None:
        """Call before writing to `arrays`."""
        self._buffer.wait()

    def send(self) -> None:
        """Bring the tensors up to the arrays."""
        self._buffer.send(self._target)


def pack_ends(arrays: Sequence[Array]) -> list[int]:
    """Where each array ends, in bytes, when all are adjacent; the next begins there."""
    return list(accumulate(-(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for array in arrays))


def views(memory: npt.NDArray[np.uint8], arrays: Sequence[Array], ends: list[int]) -> list[Array]:
    """Arrays in `memory`, shaped as `arrays`."""
    begins = [0, *ends]
    return [
        memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        for begin, array in zip(begins, arrays, strict=False)
    ]


def tensor_views(memory: torch.Tensor, arrays: Sequence[Array], ends: list[int]) -> list[torch.Tensor]:
    """Tensors in `memory`, shaped as `arrays`."""
    begins = [0, *ends]
    return [
        memory[begin : begin + array.nbytes].view(DTYPES[array.dtype]).view(array.shape)
        for begin, array in zip(begins, arrays, strict=False)
    ]
