"""The lean route for the Llama family: fused projections, few operations, the same arithmetic.

Layers follow transformers' Llama, Qwen2, Qwen3 and Mistral: RMSNorm (Zhang and Sennrich, "Root Mean Square Layer
Normalization", 2019), rotary positions (Su et al., "RoFormer", 2021), grouped-query attention, gated MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.models.attention import Attention
from schedtop.engine.runner.models.families import FAMILIES, FIXED_ROPE, GROWING_ROPE
from schedtop.engine.runner.models.fused import Operations, TorchOperations
from schedtop.engine.runner.models.linear import Linear, load_products, make_linear
from schedtop.engine.runner.models.native import Native
from transformers import PreTrainedModel


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
    """Whether the lean route computes this model exactly. What is served of a growing rope has not grown yet."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    return (
        FAMILIES[model.config.model_type].lean
        and rope.get("rope_type", "default") in (*FIXED_ROPE, *GROWING_ROPE)
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


class LeanDecoder:
    """Takes the weights out of a transformers model, which is not usable afterwards."""

    def __init__(
        self,
        model: PreTrainedModel,
        attention: Attention,
        max_model_len: int,
        operations: Operations | None = None,
    ) -> None:
        config, inner = model.config, model.model
        self.attention = attention
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_size: int = inner.layers[0].self_attn.head_dim
        self._scale = float(inner.layers[0].self_attn.scaling)
        self._eps: float = config.rms_norm_eps
        self._operations = operations or TorchOperations(inner.layers[0].mlp.act_fn)
        self._embedding = inner.embed_tokens.weight.detach()
        self._norm = inner.norm.weight.detach()
        self._cos, self._sin = _rotary_tables(model, max_model_len)
        products = load_products(self._embedding)
        self._layers = [_take_layer(layer, layer_window(layer, config), products) for layer in inner.layers]
        self._head = make_linear([model.lm_head], products)

    @torch.inference_mode()
    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        self.attention.prepare(batch)
        cos = self._cos.index_select(0, batch.positions)
        sin = self._sin.index_select(0, batch.positions)
        hidden = self._embedding.index_select(0, batch.token_ids)
        add_norm, more, wanted = self._operations.add_norm, None, batch.logit_tokens
        for index, layer in enumerate(self._layers):
            hidden, normed = add_norm(hidden, more, layer.input_norm, self._eps)
            attended = self._attend(index, layer, normed, cos, sin)
            if index == len(self._layers) - 1:  # nobody attends to what follows: only wanted tokens continue
                if wanted is None:
                    return None
                hidden, attended = hidden.index_select(0, wanted), attended.index_select(0, wanted)
            hidden, normed = add_norm(hidden, layer.out(attended), layer.mlp_norm, self._eps)
            more = layer.down(self._operations.gate(layer.gate_up(normed)))
        return self._head(add_norm(hidden, more, self._norm, self._eps)[1])

    def _attend(
        self, index: int, layer: LeanLayer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads, kv_heads, size = self._num_heads, self._num_kv_heads, self._head_size
        qkv = layer.qkv(normed).view(-1, heads + 2 * kv_heads, size)
        rotated = qkv[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._head_norm(qkv[:, :heads], layer.query_norm)
            key = self._head_norm(qkv[:, heads : heads + kv_heads], layer.key_norm)
            rotated = torch.cat((query, key), dim=1)
        rotated = self._operations.rotate(rotated, cos, sin)
        out = self.attention(
            index,
            rotated[:, :heads],
            rotated[:, heads:],
            qkv[:, heads + kv_heads :],
            scale=self._scale,
            window=layer.window,
        )
        return out.reshape(-1, heads * size)

    def _head_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm of each head of `x` [T, heads, size]."""
        rows = x.reshape(-1, x.shape[-1])
        return self._operations.add_norm(rows, None, weight, self._eps)[1].view(x.shape)


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


def _take_layer(layer: Any, window: int | None, products: Native | None) -> LeanLayer:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(module: Any) -> torch.Tensor | None:
        return None if module is None else module.weight.detach()

    return LeanLayer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=make_linear([attention.q_proj, attention.k_proj, attention.v_proj], products),
        query_norm=norm(getattr(attention, "q_norm", None)),
        key_norm=norm(getattr(attention, "k_norm", None)),
        out=make_linear([attention.o_proj], products),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=make_linear([mlp.gate_proj, mlp.up_proj], products),
        down=make_linear([mlp.down_proj], products),
        window=window,
    )
