"""How many KV blocks fit beside the weights and a step's activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from schedtop.engine.config import ConfigError, EngineConfig
from schedtop.engine.runner.batch import Batch
from schedtop.engine.runner.cache import CacheShape, PagedCache

CPU_POOL_BYTES = 1 << 30
"""Pool on a CPU unless told otherwise; never more than half of what is free."""


def pool_blocks(config: EngineConfig, shape: CacheShape, device: torch.device, decoder: Any, settings: Any) -> int:
    """Blocks of the pool. Raises `ConfigError` if not even one fits."""
    if config.kv_cache_memory_bytes is not None:
        budget = config.kv_cache_memory_bytes
        flag = f"--kv-cache-memory {budget}"
        available = available_bytes(device)
        if available is not None and budget > available:
            raise ConfigError(f"{flag}: only {available / 1e9:.1f} GB are free beside the weights")
    elif device.type == "cpu":
        available = available_bytes(device)
        budget = CPU_POOL_BYTES if available is None else min(CPU_POOL_BYTES, available // 2)
        flag = "the KV cache"
    else:
        budget = _cuda_budget(config.gpu_memory_utilization, shape, device, decoder, settings)
        flag = f"--gpu-memory-utilization {config.gpu_memory_utilization:g}"
    if budget < shape.block_bytes:
        raise ConfigError(
            f"{flag} leaves {max(budget, 0) / 1e6:.1f} MB, and one KV block takes {shape.block_bytes / 1e6:.1f} MB:"
            " raise it, or serve a smaller model"
        )
    return budget // shape.block_bytes


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


def _cuda_budget(
    utilization: float, shape: CacheShape, device: torch.device, decoder: Any, settings: dict[str, Any]
) -> int:
    """What the share of the device leaves after what is in use and the activations of the largest step."""
    tokens = settings.get("max_batched_tokens_ceiling") or settings.get("max_num_batched_tokens") or 8192
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    columns = -(-tokens // shape.block_size)
    own = decoder.attention
    decoder.attention = type(own)(PagedCache(shape, columns, device))
    pool_bytes = columns * shape.block_bytes
    decoder.forward(_largest_batch(tokens, columns, device))
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - before - pool_bytes
    decoder.attention = own
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(total * utilization) - (total - free) - max(activations, 0)


def _largest_batch(tokens: int, columns: int, device: torch.device) -> Batch:
    """One row of `tokens` tokens that asks for many logits."""
    blocks = np.arange(columns, dtype=np.int32)[None]
    places = torch.arange(tokens, device=device)
    return Batch(
        token_ids=torch.zeros_like(places),
        positions=torch.zeros_like(places),
        slot_mapping=places,
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_table=torch.from_numpy(blocks).to(device),
        logit_tokens=places[: min(tokens, 1024)],
        query_lens=np.array([tokens], dtype=np.int32),
        contexts=np.zeros(1, dtype=np.int32),
        blocks=blocks,
    )
