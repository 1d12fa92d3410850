"""How many KV blocks fit beside the weights, and which divisions of a model over GPUs can be used."""

from __future__ import annotations

from schedtop.engine.config import ConfigError
from schedtop.engine.sim.devices import GPUS_PER_NODE, Gpu
from schedtop.engine.sim.models import KV_BYTES, ModelShape
from schedtop.engine.sim.roofline import ACTIVATION_BYTES, local_kv_heads

RESERVED_BYTES = 1e9
"""Runtime context, communication buffers and captured graphs, which vLLM's profile takes off the pool too."""

LIVE_HIDDEN_STATES = 4
"""Hidden-sized activations alive at once beside the MLP's three: residual, normed input, queries, output."""

USEFUL_POOL = 0.1
"""Part of the memory share a suggested size leaves to the cache: one that just holds the weights serves nobody."""


def check_parallel(model: ModelShape, gpu: Gpu, ranks: int, stages: int) -> None:
    """Raises `ConfigError` if `model` cannot be divided over `ranks` × `stages` GPUs."""
    flag = f"--tensor-parallel-size {ranks}"
    if ranks < 1 or stages < 1:
        raise ConfigError("--tensor-parallel-size and --pipeline-parallel-size must be at least 1")
    if ranks * stages > 1 and not gpu.link_gb_s:
        raise ConfigError(f"{gpu.name} cannot be divided: use --tensor-parallel-size 1, --pipeline-parallel-size 1")
    if ranks * stages > GPUS_PER_NODE:
        raise ConfigError(
            f"{flag} × --pipeline-parallel-size {stages} is {ranks * stages} GPUs:"
            f" at most {GPUS_PER_NODE} (one node) can be simulated"
        )
    sizes = _divisions(model)
    if ranks not in sizes:
        raise ConfigError(
            f"{flag} does not divide the {model.heads} attention heads ({model.kv_heads} KV heads) of"
            f" {model.name}: use {', '.join(map(str, sizes))}"
        )
    if stages > model.layers:
        raise ConfigError(
            f"--pipeline-parallel-size {stages} is more than the {model.layers} layers of {model.name}"
        )


def pool_blocks(
    model: ModelShape,
    gpu: Gpu,
    *,
    block_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    ranks: int,
    stages: int,
    kv_cache_memory_bytes: int | None = None,
) -> int:
    """Blocks in what is left of each GPU's memory share after weights, activations and the runtime's own.

    `kv_cache_memory_bytes` (per GPU), where given, is the pool's size instead of what the share leaves. Raises
    `ConfigError` if weights or a single block do not fit.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization {gpu_memory_utilization:g}: must be above 0 and at most 1")
    share = gpu.memory_gb * 1e9 * (gpu_memory_utilization if kv_cache_memory_bytes is None else 1)
    left = share - _occupied_bytes(model, max_num_batched_tokens, ranks, stages)
    if left <= 0:
        raise ConfigError(_does_not_fit(model, gpu, share, max_num_batched_tokens, ranks, stages))
    if kv_cache_memory_bytes is not None:
        if kv_cache_memory_bytes > left:
            raise ConfigError(
                f"a KV cache of {kv_cache_memory_bytes / 1e9:.1f} GB does not fit: {gpu.name} has"
                f" {left / 1e9:.1f} GB beside {model.name}"
            )
        left = kv_cache_memory_bytes
    layers = -(-model.layers // stages)
    block_bytes = block_size * 2 * layers * local_kv_heads(model, ranks) * model.head_dim * KV_BYTES
    if left < block_bytes:
        raise ConfigError(
            f"{left / 1e6:.1f} MB are left for the KV cache of {model.name} on {gpu.name}, and one block takes"
            f" {block_bytes / 1e6:.1f} MB: raise --gpu-memory-utilization or use more GPUs"
        )
    return int(left // block_bytes)


def _occupied_bytes(model: ModelShape, max_num_batched_tokens: int, ranks: int, stages: int) -> float:
    """Memory of one GPU that the pool cannot have: weights, the largest step's activations, the runtime's own."""
    live = LIVE_HIDDEN_STATES * model.hidden + 3 * model.mlp * max(model.active_experts, 1) / ranks
    activations = max_num_batched_tokens * live * ACTIVATION_BYTES
    return model.stage_weight_bytes(stages) / ranks + activations + RESERVED_BYTES


def _does_not_fit(model: ModelShape, gpu: Gpu, share: float, tokens: int, ranks: int, stages: int) -> str:
    need = _occupied_bytes(model, tokens, ranks, stages)
    text = (
        f"{model.name} does not fit: it takes {need / 1e9:.1f} GB of each {gpu.name} before any KV cache"
        f" ({model.stage_weight_bytes(stages) / ranks / 1e9:.1f} GB weights), and {share / 1e9:.1f} GB may be used"
    )
    for larger in _divisions(model) if gpu.link_gb_s else []:
        fits = _occupied_bytes(model, tokens, larger, stages) < (1 - USEFUL_POOL) * share
        if fits and larger * stages <= GPUS_PER_NODE:
            return f"{text}: use --tensor-parallel-size {larger}"
    return f"{text}: choose a larger GPU or a smaller model"


def _divisions(model: ModelShape) -> list[int]:
    """Tensor-parallel sizes that divide the model's heads, and its KV heads or into equal copies of them."""
    sizes = range(1, GPUS_PER_NODE + 1)
    return [t for t in sizes if model.heads % t == 0 and (model.kv_heads % t == 0 or t % model.kv_heads == 0)]
