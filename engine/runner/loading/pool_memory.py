"""How many KV blocks fit beside the weights and a step's activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.runner.batch import Decoder, InputBatch
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache

CPU_POOL_BYTES = 1 << 30
"""Default pool on a CPU; never more than half of what is free."""


LARGEST_STEP_TOKENS = 16_384
"""What live limits may be raised to by default (see `start_settings.scheduler_config`)."""

MOST_LOGITS = 1024

GRAPH_BYTES = 1 << 28
"""Left for recorded decode steps, whose activations share one pool, and for their launch parameters."""

UseCache = Callable[[PagedCache], None]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model with a cache in the pool. `use_cache` makes its decoder attend over another one."""

    shape: CacheShape
    decoder: Decoder
    use_cache: UseCache
    spare_blocks: int = 0
    """Blocks its cache has beside those of the pool."""


def pool_blocks(
    config: EngineConfig, tenants: Sequence[Tenant], device: torch.device, settings: dict[str, Any]
) -> int:
    """Blocks of the pool, each of which every tenant has. Raises `ConfigError` if not even one fits.

    On a GPU the largest step of each is tried.
    """
    if config.kv_cache_memory_bytes is not None:
        budget = config.kv_cache_memory_bytes
        flag = f"--kv-cache-memory {budget}"
        available = available_bytes(device)
        if available is not None and budget > available:
            raise ConfigError(f"{flag}: only {available / 1e9:.1f} GB are free beside the weights")
    elif device.type == "cpu":
        available = available_bytes(device)
        budget = CPU_POOL_BYTES if available is None else min(CPU_POOL_BYTES, available // 2)
        flag = "half of the free memory"
    else:
        flag = f"--gpu-memory-utilization {config.gpu_memory_utilization:g}"
        tokens = largest_step_tokens(settings)
        activations = max(activation_bytes(t.shape, device, t.decoder, t.use_cache, tokens) for t in tenants)
        free, total = torch.cuda.mem_get_info(device)
        in_use = total - free
        budget = int(total * config.gpu_memory_utilization) - in_use - activations - GRAPH_BYTES * len(tenants)
    budget -= sum(tenant.spare_blocks * tenant.shape.block_bytes for tenant in tenants)
    block_bytes = sum(tenant.shape.block_bytes for tenant in tenants)
    if budget < block_bytes:
        raise ConfigError(
            f"{flag} leaves {max(budget, 0):,} bytes, and one KV block takes {block_bytes:,}: raise"
            f" {flag.split()[0] if flag.startswith('--') else '--kv-cache-memory'}, or serve a smaller model"
        )
    return budget // block_bytes


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device; None where it cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line}
    return int(sizes["MemAvailable"]) * 1024 if "MemAvailable" in sizes else None


def largest_step_tokens(settings: dict[str, Any]) -> int:
    """Tokens of the largest step that live limits allow."""
    ceiling = settings.get("max_batched_tokens_ceiling")
    return int(ceiling or max(4 * (settings.get("max_num_batched_tokens") or 0), LARGEST_STEP_TOKENS))


def activation_bytes(
    shape: CacheShape, device: torch.device, decoder: Decoder, use_cache: UseCache, tokens: int
) -> int:
    """Bytes that a step of `tokens` tokens takes beside weights and cache, by running one on a GPU.

    Leaves the decoder without a cache to serve from. Raises `ConfigError` if the step does not fit.
    """
    columns = -(-tokens // shape.block_size)
    try:
        # All layers share one layer's cache: it is the step that is measured.
        cache = PagedCache(replace(shape, num_layers=1), columns, device)
        cache.keys, cache.values = cache.keys * shape.num_layers, cache.values * shape.num_layers
        use_cache(cache)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.inference_mode():
            decoder.forward(_largest_batch(tokens, columns, device))
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        use_cache(PagedCache(shape, 1, device))
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"a step of {tokens} tokens does not fit beside the weights: lower --max-batched-tokens-ceiling,"
            " or serve a smaller model"
        ) from None
    del cache
    torch.cuda.empty_cache()
    return max(peak, 0)


def _largest_batch(tokens: int, columns: int, device: torch.device) -> InputBatch:
    """One row of `tokens` tokens that asks for many logits."""
    blocks = np.arange(columns, dtype=np.int32)[None]
    places = torch.arange(tokens, device=device)
    return InputBatch(
        token_ids=torch.zeros_like(places),
        positions=torch.zeros_like(places),
        slot_mapping=places,
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_table=torch.from_numpy(blocks).to(device),
        logit_tokens=places[:MOST_LOGITS],
        query_lens=np.array([tokens], dtype=np.int32),
        contexts=np.zeros(1, dtype=np.int32),
        blocks=blocks,
    )
