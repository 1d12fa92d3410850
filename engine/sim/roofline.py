"""Step time from first principles: bytes over bandwidth, arithmetic over peak, and fixed costs.

The constants below hold for every model and GPU alike. `benchmarks/devices.py` compares with published
measurements; `docs/devices.md` discusses the sources.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from schedtop.engine.sim.devices import Gpu
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.models import ModelShape
from schedtop.engine.sim.vision import encode_s

MATRIX_SHARE = 0.6
"""Of peak arithmetic in the projections of a forward pass. The best shapes of a bare matrix product reach 80 %
(H100) to 87 % (A100) (stas00/ml-engineering, maximum achievable matmul FLOPS); norms, rotary embedding,
activations and unfilled tiles, none of which count as FLOPs, take the rest."""

ATTENTION_SHARE = 0.5
"""Of peak arithmetic in causal attention. FlashAttention-3 on an H100: 43 to 63 % from 512 to 16k tokens
(pytorch/benchmark change 2391); FlashAttention-2 on an A100: 50 to 73 % (arXiv 2307.08691)."""

LINK_SHARE = 0.8
"""Of one direction's link bandwidth in a large all-reduce: 365 to 370 of 450 GB/s (NVIDIA/nccl issue 1455)."""

ACTIVATION_BYTES = 2


def captured_size(tokens: float) -> float:
    """Rows of the captured graph that a step of `tokens` tokens runs in: 1, 2, 4 and multiples of 8, as in vLLM."""
    return next((size for size in (1, 2, 4) if tokens <= size), 8 * math.ceil(tokens / 8))


class StepTerms(NamedTuple):
    """Seconds of each part of a step; the parts follow one another, so the step is their sum."""

    matrices_s: float
    kv_read_s: float
    attention_s: float
    collectives_s: float
    overhead_s: float


class Roofline:
    """Step times of `model` on tensor_parallel_size × pipeline_parallel_size GPUs of a kind.

    Tensor parallelism divides weights, heads and arithmetic, and adds collectives. Pipeline stages run one after
    another: the engine plans a step when the previous one is done, so a pipeline adds memory and hops, not
    overlap.
    """

    def __init__(
        self, model: ModelShape, gpu: Gpu, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
    ) -> None:
        self.model = model
        self.gpu = gpu
        self.ranks = tensor_parallel_size
        self.stages = pipeline_parallel_size
        flops = gpu.tflops * 1e12
        fast = model.layer_weight_bytes == 1 and model.fp8_arithmetic
        matrix_flops = flops * (gpu.fp8_factor if fast else 1)
        self._bytes_s = gpu.bandwidth_gb_s * 1e9 * gpu.weights_share
        self._link_bytes_s = gpu.link_gb_s / 2 * 1e9 * LINK_SHARE

        head_params = model.embedding_params / self.ranks
        self._fixed_weight_bytes = 2 * head_params + model.fixed_bytes / self.ranks
        self._expert_bytes = model.expert_layers * model.expert_params * model.layer_weight_bytes / self.ranks
        token_flops = 2 * model.active_layers_params / self.ranks
        self._token_s = token_flops / (matrix_flops * MATRIX_SHARE)
        self._head_s = 2 * head_params / (flops * MATRIX_SHARE)
        layer_kv_s = (
            model.local_kv_numbers(self.ranks) * model.kv_number_bytes / (gpu.bandwidth_gb_s * 1e9 * gpu.kv_share)
        )
        self._kv_token_s = (model.attention_layers - model.windowed_layers) * layer_kv_s
        self._windowed_kv_token_s = model.windowed_layers * layer_kv_s
        full_layers = model.attention_layers - model.windowed_layers
        self._pair_s = 4 * full_layers * model.heads * model.head_dim / self.ranks / (flops * ATTENTION_SHARE)
        windowed_flops = 4 * model.windowed_layers * model.heads * model.head_dim / self.ranks
        self._windowed_pair_s = windowed_flops / (flops * ATTENTION_SHARE)
        self._fixed_s = gpu.step_s + model.layers * gpu.layer_s
        if model.experts:
            self._fixed_s += model.expert_layers * gpu.expert_layer_s
        self._row_s = gpu.row_s + model.vocab * gpu.logit_s
        if model.state is not None:
            state_bytes = model.state.count * model.state.state_bytes(self.ranks)
            self._row_s += 2 * state_bytes / (gpu.bandwidth_gb_s * 1e9 * gpu.kv_share)
            self._token_s += 4 * model.state.count * model.state.numbers / self.ranks / (flops * ATTENTION_SHARE)
        self._prefill_s = model.layers * gpu.prefill_layer_s
        self.encode_s = partial(encode_s, gpu, self.ranks)

    def step_s(self, features: StepFeatures) -> float:
        """Seconds of a step."""
        terms = self.terms(features)
        # Not `sum`, which may round otherwise for single numbers than for arrays of them.
        return terms.matrices_s + terms.kv_read_s + terms.attention_s + terms.collectives_s + terms.overhead_s

    def terms(self, features: StepFeatures) -> StepTerms:
        """The parts of a step's time.

        - matrices: the slower of reading the weights the tokens reach and 2 FLOPs per token and weight; the
          output head works on one position per request.
        - KV read: every row's context once; layers with a window read no more than that of each row.
        - attention: 4 FLOPs per (query, key) pair, head dimension, head and layer, on top of the reading; layers with a
          window have no more pairs than that for each token.
        - layers with a state of fixed size: 4 FLOPs per token and number of it (update and reading out), among the
          matrices; each row's state read and written once, among the overhead per request.
        - collectives: see `_collectives_s`.
        - overhead: fixed per step and layer, more per layer with experts and where a row has several tokens, and per
          request.
        """
        arithmetic_s = features.tokens * self._token_s + features.requests * self._head_s
        return StepTerms(
            max(self.weights_read_bytes(features.tokens) / self._bytes_s, arithmetic_s),
            self._kv_read_s(features),
            self._attention_s(features),
            self._collectives_s(features.tokens),
            self._fixed_s
            + (self._prefill_s if features.attention_pairs else 0.0)
            + features.requests * self._row_s,
        )

    def _kv_read_s(self, features: StepFeatures) -> float:
        read_s = features.kv_tokens * self._kv_token_s
        if self._windowed_kv_token_s:
            in_windows = features.tokens - features.requests + features.requests * self.model.window
            read_s += np.minimum(features.kv_tokens, in_windows) * self._windowed_kv_token_s
        return read_s

    def _attention_s(self, features: StepFeatures) -> float:
        attention_s = features.attention_pairs * self._pair_s
        if self._windowed_pair_s:
            in_windows = features.tokens * self.model.window
            attention_s += min(features.attention_pairs, in_windows) * self._windowed_pair_s
        return attention_s

    def weights_read_bytes(self, tokens: float) -> float:
        """Bytes of weights one GPU (of each stage) reads for a step of `tokens` tokens; the embedding's are few.

        The rows that fill up a captured graph reach experts like others.
        """
        if not self.model.experts:
            return self._fixed_weight_bytes + self._expert_bytes
        return self._fixed_weight_bytes + self._expert_bytes * self.model.distinct_experts(captured_size(tokens))

    def _collectives_s(self, tokens: float) -> float:
        """Two all-reduces a layer, one after the embedding; a hop between stages.

        A ring all-reduce over t ranks moves 2 (t - 1) / t of its payload through every link.
        """
        payload_s = (
            tokens * self.model.hidden * ACTIVATION_BYTES / self._link_bytes_s if self._link_bytes_s else 0.0
        )
        latency_s = self.gpu.link_latency_s
        hops_s = (self.stages - 1) * (latency_s + payload_s)
        if self.ranks == 1:
            return hops_s
        share = 2 * (self.ranks - 1) / self.ranks
        return hops_s + (2 * self.model.layers + 1) * (latency_s + share * payload_s)
