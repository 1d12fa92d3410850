"""Modules of transformers that do what a kernel does, by the table of families, made to call it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from schedtop.engine.runner.models.families import FAMILIES
from transformers import PreTrainedModel


def replace_modules(model: PreTrainedModel) -> list[Any]:
    """Give every norm and every MLP gated by SiLU a kernel's `forward`; those modules.

    Deleting a module's `forward` undoes it.
    """
    family, replaced = FAMILIES[model.config.model_type], []
    for module in map(as_any, model.modules()):
        kind = type(module).__name__
        if kind == family.norm:
            module.forward = partial(norm_forward, module.weight.detach(), norm_eps(module), family.add_one)
        elif kind == family.mlp and gates_by_silu(model.config):
            module.forward = partial(mlp_forward, module)
        else:
            continue
        replaced.append(module)
    return replaced


def as_any(module: torch.nn.Module) -> Any:
    """A module whose attributes are not torch's to know."""
    return module


def norm_eps(module: Any) -> float:
    """Gemma's norms name it otherwise than the others."""
    return float(module.eps if hasattr(module, "eps") else module.variance_epsilon)


def gates_by_silu(config: Any) -> bool:
    """Whether a model's MLPs are gated by SiLU, the only activation with a kernel. Gemma names its own elsewhere."""
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    return name in ("silu", "swish")


def norm_forward(weight: torch.Tensor, eps: float, add_one: bool, x: torch.Tensor) -> torch.Tensor:
    """RMSNorm over the last axis of `x`."""
    from schedtop.kernels.norm import rms_norm

    rows = x.reshape(-1, x.shape[-1])
    return rms_norm(rows, weight, eps, add_one=add_one).view(x.shape)


def mlp_forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(x)) * up(x))."""
    from schedtop.kernels.activation import silu_mul

    gate, up = (part(x).flatten(0, -2) for part in (module.gate_proj, module.up_proj))
    out: torch.Tensor = module.down_proj(silu_mul(gate, up).view(*x.shape[:-1], -1))
    return out
