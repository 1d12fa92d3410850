"""The models that can be simulated: their shapes, and what follows from a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

KV_BYTES = 2
"""Bytes of one cached number: the KV cache is bf16, also under FP8 weights."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's dimensions. `mlp` is one expert's width where `experts` > 0; every layer is then a mixture.

    `layer_weight_bytes` is 2 (bf16) or 1 (FP8) per weight inside the layers; embedding and head stay bf16.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    max_model_len: int
    tied: bool = False
    qk_norm: bool = False
    experts: int = 0
    active_experts: int = 0
    layer_weight_bytes: int = 2

    @property
    def embedding_params(self) -> int:
        """Weights of the embedding, and of the output head (the same matrix where `tied`)."""
        return self.vocab * self.hidden

    @property
    def expert_params(self) -> int:
        """Gate, up and down projections of one MLP or expert."""
        return 3 * self.hidden * self.mlp

    @property
    def shared_layer_params(self) -> int:
        """Weights of one layer that every token uses: attention, norms, router."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return attention + norms + self.hidden * self.experts

    @property
    def layer_params(self) -> int:
        return self.shared_layer_params + max(self.experts, 1) * self.expert_params

    @property
    def active_layer_params(self) -> int:
        """Weights of one layer that one token is multiplied with."""
        return self.shared_layer_params + max(self.active_experts, 1) * self.expert_params

    @property
    def params(self) -> int:
        ends = self.embedding_params * (1 if self.tied else 2)
        return self.layers * self.layer_params + ends + self.hidden

    @property
    def weight_bytes(self) -> int:
        in_layers = self.layers * self.layer_params
        return in_layers * self.layer_weight_bytes + (self.params - in_layers) * 2

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * KV_BYTES

    def distinct_experts(self, tokens: float) -> float:
        """Experts of one layer that `tokens` tokens reach, if each draws its own evenly and independently.

        An expert is missed by one token with probability 1 - active / all.
        """
        if not self.experts:
            return 1.0
        missed: float = (1 - self.active_experts / self.experts) ** tokens
        return self.experts * (1 - missed)

    def stage_weight_bytes(self, stages: int) -> int:
        """Weights of the fullest of `stages` pipeline stages; with several, the ends share no matrix."""
        in_layers = -(-self.layers // stages) * self.layer_params * self.layer_weight_bytes
        ends = self.embedding_params * 2 * (1 if self.tied or stages > 1 else 2)
        return in_layers + ends


_TABLE = (
    ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
    ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, qk_norm=True),
    ModelShape(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 151936, 40960, qk_norm=True, experts=128, active_experts=8
    ),
    ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True),
    ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096),
    ModelShape("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, 4096),
)

MODELS = {model.name: model for model in _TABLE}

FP8_SUFFIX = "-fp8"
"""Added to a model's name: weights inside the layers are FP8."""


def find_model(name: str) -> ModelShape | None:
    """The shape called `name`, with or without `FP8_SUFFIX`; None if there is none."""
    shape = MODELS.get(name.removesuffix(FP8_SUFFIX))
    if shape is None or not name.endswith(FP8_SUFFIX):
        return shape
    return replace(shape, name=name, layer_weight_bytes=1)
