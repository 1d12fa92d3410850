"""The lean route for the Llama family: fused projections, few operations, the same arithmetic.

Layers follow transformers' Llama, Qwen2, Qwen3 and Mistral: RMSNorm (Zhang and Sennrich, "Root Mean Square Layer
Normalization", 2019), rotary positions (Su et al., "RoFormer", 2021), grouped-query attention, gated MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from schedtop.engine.runner.attention import Attention
from schedtop.engine.runner.batch import Batch
from schedtop.engine.runner.linear import Linear, make_linear
from transformers import PreTrainedModel

LEAN_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One decoder layer: `qkv` and `gate_up` are fused; q and k norms where the model has them."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int | None


def is_lean(model: PreTrainedModel) -> bool:
    """Whether the lean route computes this model exactly; rotary tables must not depend on the sequence."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    return (
        model.config.model_type in LEAN_MODEL_TYPES
        and rope.get("rope_type", "default") in ("default", "linear", "llama3", "yarn")
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


class LeanDecoder:
    """Takes the weights out of a transformers model, which is not usable afterwards."""

    def __init__(self, model: PreTrainedModel, attention: Attention, max_model_len: int) -> None:
        config, inner = model.config, model.model
        self.attention = attention
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_size: int = inner.layers[0].self_attn.head_dim
        self._scale = float(inner.layers[0].self_attn.scaling)
        self._eps: float = config.rms_norm_eps
        self._activation: Activation = inner.layers[0].mlp.act_fn
        self._embedding = inner.embed_tokens.weight.detach()
        self._norm = inner.norm.weight.detach()
        self._cos, self._sin = _rotary_tables(model, max_model_len)
        self._layers = [_take_layer(layer, layer_window(layer, config)) for layer in inner.layers]
        self._head = make_linear([model.lm_head])

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        self.attention.prepare(batch)
        cos = self._cos.index_select(0, batch.positions)
        sin = self._sin.index_select(0, batch.positions)
        hidden = self._embedding.index_select(0, batch.token_ids)
        for index, layer in enumerate(self._layers):
            hidden = self._attend(index, layer, hidden, cos, sin)
            hidden = self._feed(layer, hidden)
        if batch.logit_tokens is None:
            return None
        return self._head(self._normed(hidden.index_select(0, batch.logit_tokens), self._norm))

    def _attend(
        self, index: int, layer: LeanLayer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads, kv_heads, size = self._num_heads, self._num_kv_heads, self._head_size
        qkv = layer.qkv(self._normed(hidden, layer.input_norm)).view(-1, heads + 2 * kv_heads, size)
        rotated = qkv[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._normed(qkv[:, :heads], layer.query_norm)
            key = self._normed(qkv[:, heads : heads + kv_heads], layer.key_norm)
            rotated = torch.cat((query, key), dim=1)
        rotated = rotate(rotated, cos, sin)
        out = self.attention(
            index,
            rotated[:, :heads],
            rotated[:, heads:],
            qkv[:, heads + kv_heads :],
            scale=self._scale,
            window=layer.window,
        )
        return layer.out.plus(out.reshape(-1, heads * size), hidden)

    def _feed(self, layer: LeanLayer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._normed(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down.plus(self._activation(gate).mul_(up), hidden)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(self._eps))
        return weight * (wide * scale).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: `x` [T, heads, size]; `cos`, `sin` [T, 1, size], the first half of `sin` negated."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


def _rotary_tables(model: PreTrainedModel, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`cos` and signed `sin` for every position, [max_model_len, 1, head_size]."""
    weight = model.model.embed_tokens.weight
    positions = torch.arange(max_model_len, device=weight.device)[None]
    with torch.inference_mode():
        rotary: Any = model.model.rotary_emb
        cos, sin = rotary(weight, positions)
        half = cos.shape[-1] // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
    return cos[0, :, None].contiguous(), signed[0, :, None].contiguous()


def layer_window(layer: Any, config: Any) -> int | None:
    """A layer's attention window in tokens. Mistral keeps it in the config, for all layers."""
    if config.model_type == "mistral":
        return getattr(config, "sliding_window", None)
    return getattr(layer.self_attn, "sliding_window", None)


def _take_layer(layer: Any, window: int | None) -> LeanLayer:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(module: Any) -> torch.Tensor | None:
        return None if module is None else module.weight.detach()

    return LeanLayer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=make_linear([attention.q_proj, attention.k_proj, attention.v_proj]),
        query_norm=norm(getattr(attention, "q_norm", None)),
        key_norm=norm(getattr(attention, "k_norm", None)),
        out=make_linear([attention.o_proj]),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=make_linear([mlp.gate_proj, mlp.up_proj]),
        down=make_linear([mlp.down_proj]),
        window=window,
    )
