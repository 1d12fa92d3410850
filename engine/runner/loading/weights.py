"""From a model's files to its weights; what cannot be served is refused in one line that says what to do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.runner.loading.model_files import ModelFiles, check_dtype, check_model_type
from schedtop.engine.runner.models.families import FIXED_ROPE, GROWING_ROPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def reading(files: ModelFiles, what: str) -> Iterator[None]:
    """Turns whatever a loader raises into one line, and keeps it and its progress bars from printing."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # loaders raise anything from KeyError to the tensor library's own
        raise ConfigError(_explain(files, what, error)) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _explain(files: ModelFiles, what: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return f"model {files.name}: its {what} cannot be read ({text}): fetch the model again"


def load_config(files: ModelFiles) -> Any:
    """The model's configuration, of a kind that can be served. Raises `ConfigError`."""
    with reading(files, "configuration"):
        config = AutoConfig.from_pretrained(files.source, **files.arguments)
    check_model_type(files.name, config.model_type)
    if getattr(config, "use_bidirectional_attention", None):
        raise ConfigError(f"model {files.name}: it attends in both directions and generates no text: not served")
    if files.gguf is None and getattr(config, "quantization_config", None):
        raise ConfigError(f"model {files.name}: quantised weights are served from GGUF files only")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if heads % kv_heads:
        raise ConfigError(f"model {files.name}: {heads} query heads cannot share {kv_heads} key heads")
    if size % 2 or size > 256:
        raise ConfigError(f"model {files.name}: head size {size} is not served: it must be even and at most 256")
    return config


def check_rope(name: str, config: Any, max_model_len: int) -> None:
    """Raises `ConfigError` for rotary positions that would come out wrong for sequences of `max_model_len` tokens."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [each for each in rope.values() if isinstance(each, dict)]
    for each in by_layer_type or [rope]:
        kind = each.get("rope_type", "default")
        if kind in FIXED_ROPE:
            continue
        if kind not in GROWING_ROPE:
            raise ConfigError(f"model {name}: rope_type {kind!r} is not served")
        longest = config.max_position_embeddings
        if kind == "longrope":
            # Beside the rope it comes first, as in transformers, which moves it there when it builds the model.
            own = getattr(config, "original_max_position_embeddings", None)
            longest = own or each.get("original_max_position_embeddings") or longest
        if max_model_len > longest:
            raise ConfigError(
                f"model {name}: past {longest} tokens its rope_type {kind!r} moves every token of a sequence, which"
                f" a cache of keys cannot follow: set --max-model-len {longest}"
            )


def choose_dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    """The dtype `name` means for a model on a device; `auto` is a half precision the device multiplies fast."""
    if name != "auto":
        check_dtype(name, device.type)
        return DTYPES[name]
    if device.type == "cpu":
        return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    own = getattr(config, "dtype", None)
    return own if own in (torch.float16, torch.bfloat16) else torch.bfloat16


def load_weights(files: ModelFiles, config: Any, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model on its device, complete, ready to compute. Raises `ConfigError`."""
    # A GGUF file's blocks expand to float32; asking for less would keep them packed and cast at every call.
    loaded = torch.float32 if files.gguf is not None else dtype
    with reading(files, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(
            files.source,
            config=config,
            dtype=loaded,
            low_cpu_mem_usage=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, in one line
            **({} if files.gguf is not None else {"use_safetensors": True}),
            **files.arguments,
        )
    missing = sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])})
    if missing:
        raise ConfigError(
            f"model {files.name}: {len(missing)} weights are missing or misshapen ({missing[0]}): fetch it again"
        )
    model.requires_grad_(False)
    out: PreTrainedModel = model.to(device=device, dtype=dtype).eval()
    return out
