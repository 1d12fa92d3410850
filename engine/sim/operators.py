"""Step times from measured operator tables: the optional package `aiconfigurator-core` (extra `operators`)."""

from __future__ import annotations

import json
import logging
import tempfile
import textwrap
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.devices import Gpu
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.models import ModelShape
from schedtop.engine.sim.vision import encode_s

FLAG = "--step-cost operators"
SYSTEMS = {
    "b200": "b200_sxm",
    "gb200": "gb200",
    "h200": "h200_sxm",
    "h100": "h100_sxm",
    "a100": "a100_sxm",
    "l40s": "l40s",
}
"""The tables of each GPU."""
BACKEND = "vllm"
CONTEXT_STEP = 64
"""Tokens of mean context between two looks at the tables; between them time is linear."""

MOST_OF_REASON = 120
"""Characters of the package's own words in a refusal."""


class OperatorCost:
    """Step times of `model` on `ranks` GPUs of a kind, from tables of measured operators.

    The tables know matrices, attention and collectives, not the host, sampling or the gaps between kernels. A step with
    prompts is taken to have one chunk of all tokens that are not decodes. Each answer is kept, and decodes are linear
    between contexts `CONTEXT_STEP` apart. Raises `ConfigError` where the tables do not know a model or GPU, or the
    package is not installed.
    """

    def __init__(self, model: ModelShape, gpu: Gpu, ranks: int, stages: int) -> None:
        self._engine = _engine(model, gpu, ranks, stages)
        self._decodes: dict[tuple[int, int], float] = {}
        self._shared: dict[int, float] = {}
        self._chunks: dict[tuple[int, int], float] = {}
        self._rows: dict[tuple[int, int], float] = {}
        self.encode_s = partial(encode_s, gpu, ranks)

    def step_s(self, features: StepFeatures) -> float:
        """Seconds of a step; `kv_tokens` may be an array."""
        rows = max(round(features.requests), 1)
        if not features.attention_pairs:
            alone_s: float = self._between(rows, features.kv_tokens / rows, self._decode_s)
            return alone_s
        chunk = max(round(features.tokens) - rows + 1, 1)
        cached = max(round((features.attention_pairs - chunk * (chunk + 1) / 2) / chunk), 0)
        others = rows - 1
        elapsed_s: float = self._shared_s(chunk + others) + self._chunk_s(chunk, cached)
        if others:
            context = max(features.kv_tokens - chunk - cached, 0) / others
            elapsed_s += self._between(others, context, self._rows_s)
        return elapsed_s

    def _between(self, rows: int, context: Any, at_s: Any) -> Any:
        """Linear between multiples of `CONTEXT_STEP`, the same for numbers as for arrays of them."""
        place = np.asarray(context, dtype=np.float64) / CONTEXT_STEP
        below = np.floor(place).astype(np.int64)
        known = {int(step): at_s(rows, int(step)) for step in np.unique([below, below + 1])}
        low = np.vectorize(known.__getitem__, otypes=[float])(below)
        high = np.vectorize(known.__getitem__, otypes=[float])(below + 1)
        found = low + (high - low) * (place - below)
        return found if found.ndim else float(found)

    def _decode_s(self, rows: int, step: int) -> float:
        """A step of `rows` decodes at a mean context of so many `CONTEXT_STEP`s."""
        if (rows, step) not in self._decodes:
            context = max(step * CONTEXT_STEP, 1)
            self._decodes[rows, step] = self._engine.decode_step_latency(rows, context, 2) / 1e3
        return self._decodes[rows, step]

    def _rows_s(self, rows: int, step: int) -> float:
        """Attention of `rows` decodes beside a chunk."""
        if (rows, step) not in self._rows:
            context = max(step * CONTEXT_STEP, 1)
            self._rows[rows, step] = self._engine.mixed_step_breakdown(1, rows, context, 2)[3] / 1e3
        return self._rows[rows, step]

    def _chunk_s(self, chunk: int, cached: int) -> float:
        """Attention of a chunk behind `cached` tokens."""
        if (chunk, cached) not in self._chunks:
            parts = self._engine.mixed_step_breakdown(chunk, 1, chunk + cached, 2, cached)
            self._chunks[chunk, cached] = parts[2] / 1e3
        return self._chunks[chunk, cached]

    def _shared_s(self, tokens: int) -> float:
        """All but attention."""
        if tokens not in self._shared:
            self._shared[tokens] = self._engine.mixed_step_breakdown(tokens, 1, tokens, 2)[1] / 1e3
        return self._shared[tokens]


@cache
def _engine(model: ModelShape, gpu: Gpu, ranks: int, stages: int) -> Any:
    system = SYSTEMS.get(gpu.name)
    if system is None:
        raise ConfigError(f"{FLAG}: there are no tables for {gpu.name}; there are for {', '.join(SYSTEMS)}")
    if stages > 1:
        raise ConfigError(f"{FLAG}: --pipeline-parallel-size {stages} is not known to it: use 1")
    if reason := _unknown(model):
        raise ConfigError(f"{FLAG}: {model.name} has {reason}, which its tables do not know")
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError:
        raise ConfigError(f"{FLAG} needs another package: pip install 'schedtop[operators]'") from None
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    kinds = {"gemm_quant_mode": "fp8"} if model.layer_weight_bytes == 1 else {}
    if model.kv_number_bytes == 1:
        kinds["kvcache_quant_mode"] = "fp8"
    with tempfile.TemporaryDirectory() as folder:  # its own look-up of a model's name would use the network
        (Path(folder) / "config.json").write_text(json.dumps(_config(model)))
        try:
            engine = EngineHandle.compile(folder, system, BACKEND, tp_size=ranks, moe_tp_size=ranks, **kinds)
            # Some tables, as FP8's on an A100, are missed only when they are asked.
            engine.decode_step_latency(1, CONTEXT_STEP, 2)
            engine.mixed_step_breakdown(CONTEXT_STEP, 1, CONTEXT_STEP, 2)
        except Exception as error:  # the package has no common base of its errors
            reason = textwrap.shorten(str(error) or type(error).__name__, MOST_OF_REASON, placeholder="…")
            raise ConfigError(f"{FLAG}: {model.name} on {gpu.name} is not known to it: {reason}") from None
    return engine


def _unknown(model: ModelShape) -> str:
    """What the tables lack for a model; empty if nothing."""
    reasons = {
        "sliding windows": model.windowed_layers > 0,
        "layers with a state of fixed size": model.state is not None,
        "a compressed KV state": model.latent > 0,
        "shared experts or dense layers beside experts": model.shared_mlp > 0 or model.dense_layers > 0,
        "MLPs without a gate": not model.gated,
        "quantised weights": model.layer_weight_bytes not in ((2,) if model.experts else (1, 2)),
    }
    return next((reason for reason, there in reasons.items() if there), "")


def _config(model: ModelShape) -> dict[str, Any]:
    """The shape as a `config.json` of the two plain architectures."""
    config = {
        "architectures": ["MixtralForCausalLM" if model.experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if model.experts else "llama",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.mlp,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_model_len,
        "torch_dtype": "bfloat16",
    }
    experts = {"num_local_experts": model.experts, "num_experts_per_tok": model.active_experts}
    return {**config, **experts} if model.experts else config
