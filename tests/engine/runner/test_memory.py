"""How many blocks fit beside the weights and the largest step of a GPU whose memory is made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.runner.loading import pool_memory as memory
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache

CPU = torch.device("cpu")
GPU_BYTES = 10**9
SHAPE = CacheShape(3, 8, 2, 8, torch.float32)


@pytest.mark.parametrize("utilization", [0.9, 0.5])
@pytest.mark.parametrize("peak", [10**7, 10**8])
def test_the_pool_takes_what_weights_and_activations_leave(
    lab: Any, monkeypatch: pytest.MonkeyPatch, utilization: float, peak: int
) -> None:
    """A GPU of 1 GB that holds 0.3 GB already; the step is a real one on the CPU, its memory is made up."""
    worker = lab.serve("llama").worker
    decoder = worker._forward.decoder
    in_use = 3 * 10**8

    def use_cache(cache: PagedCache) -> None:
        decoder.attention = type(decoder.attention)(cache)

    for name, function in {
        "synchronize": lambda device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: in_use,
        "max_memory_allocated": lambda device: in_use + peak,
        "mem_get_info": lambda device: (GPU_BYTES - in_use, GPU_BYTES),
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(memory, "GRAPH_BYTES", 5 * 10**6)
    monkeypatch.setattr(memory, "activation_bytes", on_cpu(memory.activation_bytes))
    config = EngineConfig(device="cuda", gpu_memory_utilization=utilization)
    tenants = [memory.Tenant(SHAPE, decoder, use_cache)]
    blocks = memory.pool_blocks(config, tenants, torch.device("cuda", 0), {"max_batched_tokens_ceiling": 100})
    assert blocks == (GPU_BYTES * utilization - in_use - peak - 5 * 10**6) // SHAPE.block_bytes


def on_cpu(measure: Callable[..., int]) -> Callable[..., int]:
    def measure_on_cpu(shape: CacheShape, device: torch.device, *arguments: Any) -> int:
        assert device.type == "cuda"
        return measure(shape, CPU, *arguments)

    return measure_on_cpu


def test_a_step_that_does_not_fit(lab: Any) -> None:
    def full(cache: PagedCache) -> None:
        raise torch.OutOfMemoryError("full")

    decoder = lab.serve("llama").worker._forward.decoder
    with pytest.raises(ConfigError, match="a step of 100 tokens does not fit"):
        memory.activation_bytes(SHAPE, CPU, decoder, full, 100)
