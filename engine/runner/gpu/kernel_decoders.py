"""The lean and the general route on this project's kernels, and back on torch when a kernel fails."""

from __future__ import annotations

from typing import Any

import torch
from schedtop.engine.runner.batch import InputBatch
from schedtop.engine.runner.gpu.kernel_modules import gates_by_silu, replace_modules
from schedtop.engine.runner.models.fused import TorchOperations
from schedtop.engine.runner.models.general import GeneralDecoder
from schedtop.engine.runner.models.llama import LeanDecoder, LeanLayer
from transformers import PreTrainedModel


class KernelOperations(TorchOperations):
    """Norm and gate on kernels; a gate that is not SiLU stays on torch. `x` of `add_norm` is overwritten."""

    def __init__(self, activation: Any, is_silu: bool) -> None:
        super().__init__(activation)
        self._is_silu = is_silu

    def add_norm(
        self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from schedtop.kernels.norm import rms_norm

        if more is None:
            return x, rms_norm(x, weight, eps)
        return x, rms_norm(more, weight, eps, residual=x, out=more)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        from schedtop.kernels.activation import silu_mul

        if not self._is_silu:
            return super().gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return silu_mul(gate, up)


class KernelLeanDecoder(LeanDecoder):
    """The lean route: norms, rotary positions and gate in one launch each."""

    def __init__(self, model: PreTrainedModel, attention: Any, max_model_len: int) -> None:
        activation: Any = model.model.layers[0].mlp.act_fn
        self._torch_operations = TorchOperations(activation)
        operations = KernelOperations(activation, gates_by_silu(model.config))
        super().__init__(model, attention, max_model_len, operations)
        self._table: torch.Tensor | None = rotary_table(self._cos, self._sin)
        self._positions = torch.empty(0, dtype=torch.int64)

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none."""
        self._positions = batch.positions
        return super().forward(batch)

    def use_torch(self) -> None:
        """Leave the kernels for good; attention is the caller's to replace."""
        self._operations, self._table = self._torch_operations, None

    def _attend(
        self, index: int, layer: LeanLayer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        if self._table is None:
            return super()._attend(index, layer, normed, cos, sin)
        from schedtop.kernels.norm import rms_norm
        from schedtop.kernels.rotary import rotary

        heads, kv_heads, size = self._num_heads, self._num_kv_heads, self._head_size
        qkv = layer.qkv(normed).view(-1, heads + 2 * kv_heads, size)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        for part, weight in ((query, layer.query_norm), (key, layer.key_norm)):
            if weight is not None:
                rms_norm(part, weight, self._eps, out=part)
        rotary(query, key, self._positions, self._table)
        out = self.attention(index, query, key, value, scale=self._scale, window=layer.window)
        return out.reshape(-1, heads * size)


def rotary_table(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The kernel's table, [positions, head_size], of the lean route's two; see `LeanDecoder`."""
    half = cos.shape[-1] // 2
    return torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1).contiguous()


class KernelGeneralDecoder(GeneralDecoder):
    """The general route: modules that do what a kernel does are replaced; rotary positions stay the model's own."""

    def __init__(self, model: PreTrainedModel, attention: Any) -> None:
        super().__init__(model, attention)
        self._replaced = replace_modules(model)

    def use_torch(self) -> None:
        """Leave the kernels for good; attention is the caller's to replace."""
        for module in self._replaced:
            del module.forward
        self._replaced = []
