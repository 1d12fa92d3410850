"""The models that can be simulated: their shapes, and what follows from a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schedtop.engine.contract.kv_groups import Entry
from schedtop.engine.sim.state_layers import GROUP, StateLayers

KV_NUMBER_BYTES = 2
"""Bytes of one cached number: the KV cache is bf16 unless it is asked to be FP8, also under FP8 weights."""


MXFP4_BYTES = (4 + 8 / 32) / 8
"""Of a weight with its share of the scale of its group."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's dimensions.

    `mlp` is the width of one expert where `experts` > 0, else of the MLP. `dense_layers` of the layers have no experts
    but an MLP of `dense_mlp`; every other layer also has an MLP of `shared_mlp` for all tokens. `gated` MLPs have
    three matrices, others two. `windowed_layers` attend to the last `window` positions only (to those of their chunk
    where `chunked`), the first layer among them where `window_first`. `state` describes those with a state of fixed
    size instead of attention. `latent` is the width of a token's compressed state in a layer (MLA) in place of keys and
    values; `attention_params` are a layer's attention weights where they do not follow from the heads, `norms` its
    vectors of norms. `layer_weight_bytes` is the size of a weight inside the layers: 2 (bf16), 1 (FP8), or about half a
    byte; embedding and head stay bf16, and with `plain_attention` attention does, too.
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
    norms: int = 2
    experts: int = 0
    active_experts: int = 0
    layer_weight_bytes: float = 2
    dense_layers: int = 0
    dense_mlp: int = 0
    shared_mlp: int = 0
    gated: bool = True
    windowed_layers: int = 0
    window: int = 0
    window_first: bool = True
    chunked: bool = False
    latent: int = 0
    attention_params: int = 0
    kv_number_bytes: int = KV_NUMBER_BYTES
    fp8_arithmetic: bool = True
    plain_attention: bool = False
    state: StateLayers | None = None

    @property
    def embedding_params(self) -> int:
        """Weights of the embedding, and of the output head (the same matrix where `tied`)."""
        return self.vocab * self.hidden

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is `mlp`, with `experts` of them or a single one."""
        return self.layers - self.dense_layers

    @property
    def expert_params(self) -> int:
        """The projections of one MLP or expert."""
        return self._mlp_params(self.mlp)

    @property
    def active_mlp(self) -> int:
        """Width of the widest MLP that one token goes through."""
        return max(self.mlp * max(self.active_experts, 1) + self.shared_mlp, self.dense_mlp)

    @property
    def attention_layers_params(self) -> int:
        """Attention (or what takes its place) and norms of all layers, and routers."""
        attention = self.attention_params or 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        attention += 2 * self.head_dim if self.qk_norm else 0
        state = self.state.count * self.state.params if self.state is not None else 0
        norms = self.layers * self.norms * self.hidden
        return self.attention_layers * attention + state + norms + self.expert_layers * self.hidden * self.experts

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers - (0 if self.state is None else self.state.count)

    @property
    def fixed_params(self) -> int:
        """Weights inside the layers that every token uses, whichever experts it reaches."""
        shared = self.expert_layers * self._mlp_params(self.shared_mlp)
        return self.attention_layers_params + shared + self.dense_layers * self._mlp_params(self.dense_mlp)

    @property
    def fixed_bytes(self) -> float:
        """Of `fixed_params`."""
        plain = self.attention_layers_params if self.plain_attention else 0
        return self.fixed_params * self.layer_weight_bytes + plain * (2 - self.layer_weight_bytes)

    @property
    def layers_bytes(self) -> float:
        """Of `layers_params`."""
        return self.fixed_bytes + (self.layers_params - self.fixed_params) * self.layer_weight_bytes

    @property
    def layers_params(self) -> int:
        """All weights inside the layers."""
        return self.fixed_params + self.expert_layers * max(self.experts, 1) * self.expert_params

    @property
    def active_layers_params(self) -> int:
        """Weights inside the layers that one token is multiplied with."""
        return self.fixed_params + self.expert_layers * max(self.active_experts, 1) * self.expert_params

    @property
    def params(self) -> int:
        ends = self.embedding_params * (1 if self.tied else 2)
        return self.layers_params + ends + self.hidden

    @property
    def weight_bytes(self) -> float:
        return self.layers_bytes + (self.params - self.layers_params) * 2

    @property
    def kv_numbers_per_layer(self) -> int:
        """Numbers cached for one token in one layer."""
        return self.latent or 2 * self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        return self.attention_layers * self.kv_numbers_per_layer * self.kv_number_bytes

    @property
    def kv_groups(self) -> tuple[Entry, ...]:
        """Groups of layers that keep state alike, as vLLM divides them: "full", a window in tokens, or `GROUP`.

        A pool's blocks must be of one size, so every group has `group_layers` layers, the last of a kind perhaps fewer.
        Chunked layers keep everything.
        """
        apart, entry, comes_first = self._layers_apart
        size = self.group_layers
        groups: tuple[tuple[Entry, ...], ...] = (
            (entry,) * -(-apart // size),
            ("full",) * -(-(self.layers - apart) // size),
        )
        first, second = groups if comes_first else groups[::-1]
        return first + second

    @property
    def group_layers(self) -> int:
        """Layers of a KV group: all of the rarer kind, or of the commoner one if it has under half as many again."""
        apart, _, _ = self._layers_apart
        fewer, more = sorted((apart, self.layers - apart))
        return more if more < 1.5 * fewer else fewer or more

    @property
    def _layers_apart(self) -> tuple[int, Entry, bool]:
        """How many layers do not keep everything, what they keep, and whether the first one is among them."""
        if self.state is not None:
            return self.state.count, GROUP, self.state.first
        windowed = 0 if self.chunked or not self.window else self.windowed_layers
        return windowed, self.window, self.window_first

    def distinct_experts(self, tokens: float) -> float:
        """Experts of one layer that `tokens` tokens reach, if each draws its own evenly and independently.

        An expert is missed by one token with probability 1 - active / all.
        """
        if not self.experts:
            return 1.0
        missed: float = (1 - self.active_experts / self.experts) ** tokens
        return self.experts * (1 - missed)

    def local_kv_numbers(self, ranks: int) -> int:
        """Numbers that one of `ranks` tensor-parallel ranks caches for a token in a layer.

        Fewer KV heads than ranks are held by several; a latent state by all.
        """
        return self.latent or 2 * max(self.kv_heads // ranks, 1) * self.head_dim

    def stage_weight_bytes(self, stages: int) -> float:
        """Weights of the fullest of `stages` pipeline stages; with several, the ends share no matrix."""
        in_layers = -(-self.layers // stages) * self.layers_bytes / self.layers
        ends = self.embedding_params * 2 * (1 if self.tied or stages > 1 else 2)
        return in_layers + ends

    def _mlp_params(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width


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
    *(
        ModelShape(
            f"gemma-3-{size}",
            *(layers, hidden, heads, kv_heads, head_dim, mlp, 262_208, 131_072),
            tied=True,
            qk_norm=True,
            norms=4,
            windowed_layers=layers - layers // 6,
            window=1024,
        )
        for size, layers, hidden, heads, kv_heads, head_dim, mlp in (
            ("4b", 34, 2560, 8, 4, 256, 10240),
            ("12b", 48, 3840, 16, 8, 256, 15360),
            ("27b", 62, 5376, 32, 16, 128, 21504),
        )
    ),
    *(
        ModelShape(
            name,
            *(layers, 2880, 64, 8, 64, 2880, 201_088, 131_072),
            experts=experts,
            active_experts=4,
            layer_weight_bytes=MXFP4_BYTES,
            fp8_arithmetic=False,
            windowed_layers=layers // 2,
            window=128,
        )
        for name, layers, experts in (("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128))
    ),
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
