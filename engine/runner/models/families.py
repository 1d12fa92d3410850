"""The architectures that are served, and what the modules of each compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`norm` and `mlp` are the classes of transformers' modules; the norm scales by the weight, or by 1 + weight if
    `add_one`; the MLP is gated. `lean`: the lean decoder computes it as well. `capped`: attention scores may be.
    """

    norm: str
    mlp: str
    lean: bool = True
    add_one: bool = False
    capped: bool = False


FAMILIES = {
    "llama": ModelFamily("LlamaRMSNorm", "LlamaMLP"),
    "mistral": ModelFamily("MistralRMSNorm", "MistralMLP"),
    "qwen2": ModelFamily("Qwen2RMSNorm", "Qwen2MLP"),
    "qwen3": ModelFamily("Qwen3RMSNorm", "Qwen3MLP"),
    "smollm3": ModelFamily("SmolLM3RMSNorm", "SmolLM3MLP", lean=False),
    "gemma2": ModelFamily("Gemma2RMSNorm", "Gemma2MLP", lean=False, add_one=True, capped=True),
    "gemma3_text": ModelFamily("Gemma3RMSNorm", "Gemma3MLP", lean=False, add_one=True),
}
"""By `model_type` of a configuration."""

FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary positions that are the same whatever the sequence's length."""

GROWING_ROPE = ("longrope", "dynamic")
"""Those that change once a sequence is longer than the original model's: a cache of keys cannot follow."""
