"""How many KV blocks fit beside the weights, and how a model can be divided over GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.devices import GPUS_PER_NODE, Gpu
from schedtop.engine.sim.models import ModelShape
from schedtop.engine.sim.roofline import ACTIVATION_BYTES

RESERVED_BYTES = 1e9
"""Runtime context, communication buffers and captured graphs, which vLLM's profile takes off the pool too."""

LIVE_HIDDEN_STATES = 4
"""Hidden-sized activations alive at once beside the MLP's three: residual, normed input, queries, output."""

DEFAULT_SHARE = 0.9
"""Of a GPU's memory, unless `--gpu-memory-utilization` says otherwise."""

USEFUL_POOL = 0.1
"""Part of the memory share that a suggested size should leave to the cache: little more than weights serves nobody."""


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


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What decides how many blocks a device's pool has, in the terms of the flags. `one_group`: of all layers."""

    block_size: int = 16
    gpu_memory_utilization: float = DEFAULT_SHARE
    max_num_batched_tokens: int = 2048
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_memory_bytes: int | None = None
    one_group: bool = False


def pool_blocks(model: ModelShape, gpu: Gpu, settings: PoolSettings) -> int:
    """Blocks in what is left of each GPU's memory share after weights, activations and the runtime's own.

    A block holds tokens of the layers of one KV group. `kv_cache_memory_bytes` (per GPU), where given, is the pool's
    size instead of what the share leaves. Raises `ConfigError` if weights or a single block do not fit, or the model
    cannot be divided so.
    """
    ranks, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    share, given = settings.gpu_memory_utilization, settings.kv_cache_memory_bytes
    check_parallel(model, gpu, ranks, stages)
    if not 0 < share <= 1:
        raise ConfigError(f"--gpu-memory-utilization {share:g}: must be above 0 and at most 1")
    left = _left_bytes(model, gpu, settings)
    if left <= 0:
        raise ConfigError(_does_not_fit(model, gpu, settings))
    block_bytes = local_block_bytes(model, settings)
    if given is None and left < block_bytes:
        raise ConfigError(
            f"--gpu-memory-utilization {share:g} leaves {left / 1e6:.1f} MB of {gpu.name} for the KV cache, and one"
            f" block of {model.name} takes {block_bytes / 1e6:.1f} MB: raise it or use more GPUs"
        )
    if given is not None and not block_bytes <= given <= left:
        raise ConfigError(
            f"--kv-cache-memory {given}: must be from {block_bytes} (one block) to {int(left)} (what {gpu.name} has"
            f" beside {model.name})"
        )
    return int((left if given is None else given) // block_bytes)


def block_tokens(model: ModelShape, wanted: int, ranks: int, drafts: int) -> int:
    """Tokens of a block: the `wanted`, or more where a block must hold a state of fixed size."""
    if model.state is None:
        return wanted
    return model.state.block_size(wanted, model.local_kv_numbers(ranks) * model.kv_number_bytes, ranks, drafts)


def local_block_bytes(model: ModelShape, settings: PoolSettings) -> int:
    """What a block takes of each GPU."""
    ranks, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    layers = -(-(model.layers if settings.one_group else model.group_layers) // stages)
    return settings.block_size * layers * model.local_kv_numbers(ranks) * model.kv_number_bytes


def _occupied_bytes(model: ModelShape, max_num_batched_tokens: int, ranks: int, stages: int) -> float:
    """Memory of one GPU that the pool cannot have: weights, the largest step's activations, the runtime's own."""
    live = LIVE_HIDDEN_STATES * model.hidden + 3 * model.active_mlp / ranks
    activations = max_num_batched_tokens * live * ACTIVATION_BYTES
    return model.stage_weight_bytes(stages) / ranks + activations + RESERVED_BYTES


def _usable_bytes(gpu: Gpu, settings: PoolSettings) -> float:
    """Memory of one GPU that may be used: all of it where the pool's size is given."""
    share = settings.gpu_memory_utilization if settings.kv_cache_memory_bytes is None else 1
    return gpu.memory_gb * 1e9 * share


def _left_bytes(model: ModelShape, gpu: Gpu, settings: PoolSettings) -> float:
    """Memory of one GPU that the pool can have; negative where the model does not fit."""
    ranks, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    return _usable_bytes(gpu, settings) - _occupied_bytes(model, settings.max_num_batched_tokens, ranks, stages)


def _does_not_fit(model: ModelShape, gpu: Gpu, settings: PoolSettings) -> str:
    ranks, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    usable, share = _usable_bytes(gpu, settings), settings.gpu_memory_utilization
    need = usable - _left_bytes(model, gpu, settings)
    text = (
        f"{model.name} does not fit: it takes {need / 1e9:.1f} GB of each {gpu.name} before any KV cache"
        f" ({model.stage_weight_bytes(stages) / ranks / 1e9:.1f} GB weights), and {usable / 1e9:.1f} GB may be used"
    )
    if share < DEFAULT_SHARE and need < (1 - USEFUL_POOL) * DEFAULT_SHARE * gpu.memory_gb * 1e9:
        return f"{text}: raise --gpu-memory-utilization {share:g}"
    sizes = _sizes_that_fit(model, gpu, settings)
    if not sizes:
        return f"{text}: choose a larger GPU or a smaller model"
    options = " or ".join(f"{larger} ({left / 1e9:.1f} GB)" for larger, left in sizes.items())
    return f"{text}: use --tensor-parallel-size {options.replace(' GB)', ' GB left for the KV cache)', 1)}"


def _sizes_that_fit(model: ModelShape, gpu: Gpu, settings: PoolSettings) -> dict[int, float]:
    """The least tensor-parallel size at which a block fits beside the model, with the bytes left for the pool; and the
    least that leaves a useful pool, if that is another."""
    found: dict[int, float] = {}
    for larger in _divisions(model) if gpu.link_gb_s else []:
        divided = replace(settings, tensor_parallel_size=larger)
        left = _left_bytes(model, gpu, divided)
        wanted = settings.kv_cache_memory_bytes or local_block_bytes(model, divided)
        if left < wanted or larger * settings.pipeline_parallel_size > GPUS_PER_NODE:
            continue
        useful = left > USEFUL_POOL * _usable_bytes(gpu, settings)
        if useful or not found:
            found[larger] = left
        if useful:
            break
    return found


def _divisions(model: ModelShape) -> list[int]:
    """Tensor-parallel sizes that divide the model's heads, and its KV heads or into equal copies of them."""
    sizes = range(1, GPUS_PER_NODE + 1)
    state_heads = 0 if model.state is None else model.state.heads
    return [
        t
        for t in sizes
        if model.heads % t == state_heads % t == 0 and (model.kv_heads % t == 0 or t % model.kv_heads == 0)
    ]
