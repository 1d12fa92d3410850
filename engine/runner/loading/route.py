"""Which code runs a model, the fastest that can; said once at start and kept for those who ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from schedtop.engine.runner.batch import Decoder
from schedtop.engine.runner.gpu.backend import choose_kernels, make_kernel_decoder
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.models.attention import Attention
from schedtop.engine.runner.models.families import FAMILIES
from schedtop.engine.runner.models.fused import NativeAttention, NativeOperations, can_attend
from schedtop.engine.runner.models.general import GeneralDecoder
from schedtop.engine.runner.models.kv_cache import PagedCache
from schedtop.engine.runner.models.llama import LeanDecoder, is_lean
from schedtop.engine.runner.models.native import load_native, why_not_native
from schedtop.engine.runner.models.soft_capped_attention import torch_attention
from transformers import PreTrainedModel


def make_decoder(
    model: PreTrainedModel,
    cache: PagedCache,
    device: torch.device,
    max_model_len: int,
    kernels: bool | None,
    tell: Callable[[str], None],
) -> LeanDecoder | GeneralDecoder | GuardedDecoder:
    """The model on its fastest route, attending over `cache`. `kernels`: Triton's or not; None: on a GPU.

    `tell` gets why a faster route is not taken.
    """
    shape, config = cache.shape, model.config
    wanted = device.type == "cuda" if kernels is None else kernels
    if wanted and choose_kernels(shape, config.num_attention_heads, device, tell):
        return make_kernel_decoder(model, cache, max_model_len, layer_soft_cap(config), tell)
    native = load_native(shape.dtype, device)
    if native is None and device.type == "cpu" and os.environ.get("SCHEDTOP_NATIVE") != "0":
        tell(f"{why_not_native(shape.dtype)}: running on torch, three to four times slower")
    attention = make_attention(cache, config, device)
    if not is_lean(model):
        return GeneralDecoder(model, attention)
    operations = NativeOperations(native) if native is not None and config.hidden_act == "silu" else None
    return LeanDecoder(model, attention, max_model_len, operations)


def make_attention(cache: PagedCache, config: Any, device: torch.device) -> Attention:
    """Paged attention for a model's configuration, on the cache's device, without Triton."""
    soft_cap = layer_soft_cap(config)
    native = load_native(cache.shape.dtype, device)
    if soft_cap is None and native is not None and can_attend(cache, config.num_attention_heads):
        return NativeAttention(cache, native)
    return torch_attention(cache, soft_cap)


def layer_soft_cap(config: Any) -> float | None:
    """The cap on attention scores, where a model has one."""
    return getattr(config, "attn_logit_softcapping", None) if FAMILIES[config.model_type].capped else None


def route_name(decoder: Decoder) -> str:
    """What runs the model: `Triton`, the instruction set of the compiled routines, or `torch`."""
    if isinstance(decoder, GuardedDecoder):
        return "Triton" if decoder.on_kernels else "torch"
    attention = getattr(decoder, "attention", None)
    return attention.instructions if isinstance(attention, NativeAttention) else "torch"


def describe_route(decoder: Decoder) -> str:
    """The same in full, for the line at the start."""
    name = route_name(decoder)
    kind = {"Triton": "Triton kernels", "torch": "torch"}.get(name, f"compiled CPU routines ({name})")
    inner = decoder.inner if isinstance(decoder, GuardedDecoder) else decoder
    return f"transformers' modules with attention by {kind}" if isinstance(inner, GeneralDecoder) else kind
