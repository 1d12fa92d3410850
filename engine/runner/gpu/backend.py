"""Whether a model runs on this project's kernels, and how its decoder is put together if it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from schedtop import kernels
from schedtop.engine.runner.errors import first_line
from schedtop.engine.runner.gpu.graphs import CudaRecorder, DecodeGraphs
from schedtop.engine.runner.gpu.kernel_decoders import KernelGeneralDecoder, KernelLeanDecoder
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder, KernelRoute
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache
from schedtop.engine.runner.models.llama import is_lean
from transformers import PreTrainedModel

Tell = Callable[[str], None]


def choose_kernels(shape: CacheShape, num_heads: int, device: torch.device, tell: Tell) -> bool:
    """Whether the kernels serve a model of these sizes; if not, `tell` gets the reason."""
    reason = kernels.unavailable_reason(device) or try_kernels(shape, num_heads, device)
    if reason is not None:
        tell(f"{reason}: running on torch, which is slower")
    return reason is None


def try_kernels(shape: CacheShape, num_heads: int, device: torch.device) -> str | None:
    """Runs every kernel once on a prompt and on a decode; why one does not run, or None."""
    try:
        with torch.inference_mode():
            for num_tokens in (3, 1):
                _run_kernels(shape, num_heads, num_tokens, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler's failure has no type of its own
        return f"the kernels do not run here ({first_line(error)})"
    return None


def _run_kernels(shape: CacheShape, num_heads: int, num_tokens: int, device: torch.device) -> None:
    """One row of `num_tokens` tokens through each kernel."""
    from schedtop.kernels.activation import silu_mul
    from schedtop.kernels.kv_write import kv_write
    from schedtop.kernels.norm import rms_norm
    from schedtop.kernels.paged_attention import paged_attention
    from schedtop.kernels.rotary import rotary

    places = torch.arange(num_tokens, device=device)
    heads = torch.ones(num_tokens, num_heads, shape.head_size, dtype=shape.dtype, device=device)
    own = heads[:, : shape.num_kv_heads].contiguous()
    cache = torch.zeros(1, shape.block_size, *own.shape[1:], dtype=shape.dtype, device=device)
    values = torch.zeros_like(cache)
    rows = heads.flatten(1)
    rotary(heads, own, places, torch.ones(num_tokens, shape.head_size, dtype=shape.dtype, device=device))
    kv_write(own, own, cache, values, places)
    bounds = torch.tensor([0, num_tokens], dtype=torch.int32, device=device)
    table = torch.zeros(1, 1, dtype=torch.int32, device=device)
    lengths = bounds[1:].contiguous()
    limits: dict[str, Any] = {"max_query_len": num_tokens, "max_seq_len": shape.block_size, "scale": 1.0}
    paged_attention(heads, cache, values, table, bounds, lengths, **limits)
    rms_norm(rows, rows[0], 1e-5, residual=rows.clone())
    silu_mul(rows, rows)


def make_kernel_decoder(
    model: PreTrainedModel, cache: PagedCache, max_model_len: int, soft_cap: float | None, tell: Tell
) -> GuardedDecoder:
    """The model's route on kernels, attending over `cache` until it is given another."""
    inner: KernelRoute
    if is_lean(model):
        inner = KernelLeanDecoder(model, None, max_model_len)
    else:
        inner = KernelGeneralDecoder(model, None)
    return GuardedDecoder(inner, cache, tell, soft_cap)


def make_graphs(decoder: GuardedDecoder, shape: CacheShape, max_model_len: int, tell: Tell) -> DecodeGraphs | None:
    """Recorded decode steps, where the device of the decoder's cache has graphs."""
    device = decoder.cache.keys[0].device
    if device.type != "cuda":
        return None
    return DecodeGraphs(
        decoder,
        CudaRecorder(),
        max_model_len=max_model_len,
        block_size=shape.block_size,
        device=device,
        tell=tell,
    )
