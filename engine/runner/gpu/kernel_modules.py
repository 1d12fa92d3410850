"""Modules of transformers that do what a kernel does, found by comparing the two, and made to call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

Forward = Callable[[torch.Tensor], torch.Tensor]

MLP_PARTS = ("gate_proj", "up_proj", "down_proj")
PROBE_ROWS = 3
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def replace_modules(model: PreTrainedModel) -> list[Any]:
    """Give every norm and gated MLP of `model` a kernel's `forward` where both agree; those modules.

    Deleting a module's `forward` undoes it.
    """
    replaced = []
    for module in model.modules():
        for forward in candidates(module):
            if agree(module, forward):
                module.forward = forward
                replaced.append(module)
                break
    return replaced


def candidates(module: Any) -> Iterator[Forward]:
    """What `module` may compute, going by its name and parts."""
    name = type(module).__name__
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if name.endswith("RMSNorm") and eps is not None and getattr(module, "weight", None) is not None:
        for add_one in (False, True):
            yield partial(norm_forward, module.weight.detach(), float(eps), add_one)
    gated = all(isinstance(getattr(module, part, None), torch.nn.Linear) for part in MLP_PARTS)
    if gated and is_silu(getattr(module, "act_fn", None)):
        yield partial(mlp_forward, module)


def is_silu(activation: Any) -> bool:
    """Whether a function of tensors is SiLU. GELU is close to it near zero, where a model's own values may lie."""
    x = torch.linspace(-6, 6, 49)
    return callable(activation) and torch.allclose(activation(x), torch.nn.functional.silu(x), atol=1e-6)


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


@torch.inference_mode()
def agree(module: Any, forward: Forward) -> bool:
    """Whether `forward` gives what `module` does, on random rows."""
    weight = module.weight if hasattr(module, "weight") else module.gate_proj.weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, PROBE_ROWS, weight.shape[-1], generator=generator).to(weight)
    theirs, ours = module(x).float(), forward(x).float()
    return bool((theirs - ours).norm() <= TOLERANCES[weight.dtype] * theirs.norm())
