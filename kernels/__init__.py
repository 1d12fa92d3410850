"""Triton kernels of the worker, each behind a checked wrapper, and plain-torch answers for all of them.

Every kernel lives in its own module and is imported from there, so that `reference` and this module load
without Triton:

    from schedtop.kernels.paged_attention import paged_attention

`unavailable_reason` says in words why the Triton modules cannot serve a device, or None when they can.
"""

from __future__ import annotations

import importlib.util
import os

import torch


def interpreted() -> bool:
    """Whether Triton was asked to interpret kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "yes", "on"}


def unavailable_reason(device: torch.device | str) -> str | None:
    """Why the kernels cannot run on `device`; None when no obstacle is known."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    kind = torch.device(device).type
    if interpreted():
        return None if kind == "cpu" else "TRITON_INTERPRET is set: kernels run on CPU tensors only"
    if kind != "cuda":
        return f"Triton kernels need a CUDA device, not {kind}"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None
