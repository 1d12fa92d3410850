"""vLLM's own scheduler without a model, for what has to be measured or checked against the real one.

Needs an environment in which `import vllm` works, and a model folder of which only the config is read.
"""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def build(model: str, base: type | None = None, **limits: Any) -> Any:
    """A scheduler of class `base` (vLLM's synchronous one unless given). `limits` are vLLM's names and
    `num_blocks`, `block_size`, `enable_prefix_caching`, `num_speculative_tokens` (n-gram drafts, or those of a
    `drafter`), and `windows`: for each KV group its sliding window in tokens, None for full attention (one such group
    unless given), and `pooling`."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
    from vllm.v1.structured_output import StructuredOutputManager

    logging.disable(logging.WARNING)
    block_size, length = limits.pop("block_size", 16), limits.pop("max_model_len", 8192)
    num_blocks, caching = limits.pop("num_blocks", 10_000) + 1, limits.pop("enable_prefix_caching", True)
    overlaps, drafts = limits.pop("async_scheduling", False), limits.pop("num_speculative_tokens", 0)
    windows, drafter = limits.pop("windows", (None,)), limits.pop("drafter", "ngram")
    runner = "pooling" if limits.pop("pooling", False) else "generate"
    scheduler_config = SchedulerConfig(
        max_model_len=length, is_encoder_decoder=False, async_scheduling=False, **limits
    )
    model_config = ModelConfig(
        model=model, runner=runner, dtype="float16", seed=0, skip_tokenizer_init=True, max_model_len=length
    )
    cache_config = CacheConfig(block_size=block_size, enable_prefix_caching=caching, gpu_memory_utilization=0.9)
    config = VllmConfig(scheduler_config=scheduler_config, model_config=model_config, cache_config=cache_config)
    if drafts:
        config.speculative_config = SpeculativeConfig(
            target_model_config=model_config,
            target_parallel_config=config.parallel_config,
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=3,
        )
        config.speculative_config.method = drafter  # EAGLE asks for a draft model at its start
    scheduler_config.async_scheduling = overlaps
    cache_config.num_gpu_blocks = num_blocks
    shape: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = [
        SlidingWindowSpec(sliding_window=window, **shape) if window else FullAttentionSpec(**shape)
        for window in windows
    ]
    groups = [KVCacheGroupSpec([f"layer{place}"], spec) for place, spec in enumerate(specs)]
    pool = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    return (base or Scheduler)(
        vllm_config=config,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=block_size,
        log_stats=True,
    )


class Requests:
    """Makes requests for a scheduler; prompts are made up, and equal where `seed` is."""

    def __init__(self, scheduler: Any) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self._pooling = scheduler.vllm_config.model_config.runner_type == "pooling"
        self._hasher = get_request_block_hasher(scheduler.block_size, sha256)

    def make(self, name: str, prompt: list[int], max_tokens: int, **more: Any) -> Any:
        from vllm.pooling_params import PoolingParams
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
        sampling.update_from_generation_config({}, -1)
        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=None if self._pooling else sampling,
            pooling_params=PoolingParams() if self._pooling else None,
            block_hasher=self._hasher,
            **more,
        )


def answer(scheduler: Any, output: Any, token: int = 7) -> Any:
    """What a model gives back for a batch: one token where a prompt is done."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    sampled = [[] if scheduler.requests[name].is_prefill_chunk else [token] for name in names]
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=sampled,
    )
