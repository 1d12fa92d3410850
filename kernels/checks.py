"""Argument checks shared by the wrappers.

Each failure names the argument. A wrong kind of thing (dtype, device, not a tensor) is a TypeError, a wrong
shape, stride or value a ValueError. Checks on values read device memory and therefore wait for the device:
wrappers make them only when the caller asks with `check_values=True`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from schedtop.kernels import interpreted

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (8, 16, 32)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    *,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Check kind, device, dtype and shape; None in `shape` allows any length."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: dtype {tensor.dtype} is not one of {allowed}")
    if device is not None and tensor.device != device:
        raise TypeError(f"{name}: on {tensor.device}, expected {device}")
    fits = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} does not match ({wanted})")


def check_runnable(name: str, tensor: torch.Tensor) -> None:
    """Check that a kernel can reach the tensor: CUDA memory when compiled, CPU memory when interpreted."""
    wanted = "cpu" if interpreted() else "cuda"
    if tensor.device.type != wanted:
        raise TypeError(f"{name}: on {tensor.device}, but kernels run on {wanted} tensors here")


def check_last_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Check that neighbours along the last axis are neighbours in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: last axis has stride {tensor.stride(-1)}, expected 1")


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Check for a dense row-major layout."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: strides {tensor.stride()} of shape {tuple(tensor.shape)} are not contiguous")


def check_writable(name: str, tensor: torch.Tensor) -> None:
    """Check that no axis repeats one element, as an expanded tensor's do: a kernel writes each once."""
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if length > 1 and stride == 0:
            raise ValueError(f"{name}: an axis has stride 0, so its elements share memory and cannot be written")


def check_number(name: str, value: float, *, above: float | None = None, at_least: float | None = None) -> None:
    """Check that a Python number is finite and within its open or closed lower bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{name}: {value} is not finite")
    if above is not None and value <= above:
        raise ValueError(f"{name}: {value} is not above {above}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name}: {value} is below {at_least}")


def check_count(name: str, value: int, *, at_least: int) -> None:
    """Check that a Python number is whole and not too small."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected a whole number, got {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{name}: {value} is below {at_least}")


def check_cache_pair(k_cache: torch.Tensor, v_cache: torch.Tensor, device: torch.device) -> None:
    """Check a paged cache: two tensors [num_blocks, block_size, num_kv_heads, head_size] of one kind."""
    check_tensor("k_cache", k_cache, shape=(None,) * 4, dtypes=FLOATS, device=device)
    check_tensor("v_cache", v_cache, shape=k_cache.shape, dtypes=(k_cache.dtype,), device=device)
    num_blocks, block_size, num_kv_heads, head_size = k_cache.shape
    if num_blocks < 1 or num_kv_heads < 1:
        raise ValueError(f"k_cache: shape {tuple(k_cache.shape)} has no blocks or no heads")
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"k_cache: block size {block_size} is not one of {BLOCK_SIZES}")
    if head_size not in HEAD_SIZES:
        raise ValueError(f"k_cache: head size {head_size} is not one of {HEAD_SIZES}")
    check_last_contiguous("k_cache", k_cache)
    check_writable("k_cache", k_cache)
    # One address computation serves both.
    if v_cache.stride() != k_cache.stride():
        raise ValueError(f"v_cache: strides {v_cache.stride()} differ from k_cache's {k_cache.stride()}")


def check_bounds(name: str, values: torch.Tensor, low: int, high: int) -> None:
    """Check low <= value < high for every element. Waits for the device."""
    if values.numel() == 0:
        return
    smallest, largest = (int(bound) for bound in torch.aminmax(values))
    if smallest < low or largest >= high:
        culprit = smallest if smallest < low else largest
        raise ValueError(f"{name}: value {culprit} is outside {low} to {high - 1}")


def check_batch_values(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: int,
    max_query_len: int,
    num_blocks: int,
    block_size: int,
) -> None:
    """Check the numbers that describe a batch; only table entries that are read count. Waits for the device."""
    starts, lengths, table = (tensor.cpu().long() for tensor in (query_start_loc, seq_lens, block_table))
    query_lens = starts.diff()
    if int(starts[0]) != 0 or bool((query_lens < 0).any()):
        raise ValueError("query_start_loc: must start at 0 and never decrease")
    if int(starts[-1]) > num_tokens:
        raise ValueError(f"query_start_loc: ends at {int(starts[-1])}, but there are {num_tokens} tokens")
    if bool((query_lens > max_query_len).any()):
        raise ValueError(f"max_query_len: {max_query_len} is below the longest query, {int(query_lens.max())}")
    if bool((lengths < 0).any()):
        raise ValueError("seq_lens: negative length")
    short = (lengths < query_lens) & (lengths > 0)
    if bool(short.any()):
        row = int(short.nonzero()[0])
        raise ValueError(f"seq_lens: row {row} has {int(lengths[row])} tokens but {int(query_lens[row])} queries")
    needed = (lengths + block_size - 1) // block_size
    if bool((needed > table.shape[1]).any()):
        raise ValueError(f"block_table: {table.shape[1]} columns, but a row needs {int(needed.max())} blocks")
    read = torch.arange(table.shape[1]) < needed[:, None]
    check_bounds("block_table", table[read], 0, num_blocks)
