"""The compiled routines of `c/`, where the extension module was built; torch does their work elsewhere.

`SCHEDTOP_NATIVE=0` switches them off; the name of an instruction set, such as `avx2`, takes those of that set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
MAX_HEAD_SIZE, MAX_SHARED_HEADS, MAX_BLOCK_SIZE = 256, 64, 256

Routine = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Native:
    """The routines of one dtype and instruction set. Only with a `panel_width` other than 0 may `linear` be called."""

    instructions: str
    panel_width: int
    add_norm: Routine
    rotate: Routine
    silu_mul: Routine
    attend: Routine
    attend_tiles: Routine
    linear: Routine


def native_choices(dtype: torch.dtype) -> list[Native]:
    """All that this processor runs, best first; none where the extension module was not built."""
    if dtype not in DTYPES:
        return []
    try:
        import schedtop.engine.runner.models._native as _native
    except ImportError:  # not built, or built for another machine
        return []
    return [Native(name, width, **routines) for name, width, routines in _native.load(DTYPES[dtype])]


def load_native(dtype: torch.dtype, device: torch.device) -> Native | None:
    """The best routines for a dtype, or those of the instruction set that is asked for; None: torch serves."""
    wanted = os.environ.get("SCHEDTOP_NATIVE", "1")
    if device.type != "cpu" or wanted == "0":
        return None
    choices = native_choices(dtype)
    return next((choice for choice in choices if wanted in ("1", choice.instructions)), None)


def why_not_native(dtype: torch.dtype) -> str:
    """Why a CPU runs without the routines, for a dtype that they serve."""
    wanted = os.environ.get("SCHEDTOP_NATIVE", "1")
    names = [choice.instructions for choice in native_choices(dtype)]
    if not names:
        return "the compiled CPU routines were not built (install again with a C compiler)"
    return f"SCHEDTOP_NATIVE={wanted} (this processor has {', '.join(names)})"
