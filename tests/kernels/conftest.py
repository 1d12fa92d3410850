"""Kernel tests run compiled on a GPU where there is one, and through Triton's interpreter everywhere else."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable

import pytest

MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]

if not MISSING:
    import torch

    if not torch.cuda.is_available() and "triton" not in sys.modules:
        # Triton decides when it is imported whether its own library is interpreted too.
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MISSING or torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return
    reason = "Triton was imported before TRITON_INTERPRET=1 was set, and there is no GPU"
    for item in items:
        if "tests/kernels" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _quick(quick_interpreter: None) -> None:
    """All of these run kernels."""


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def seeded() -> int:
    """Fresh random inputs on every run; the seed is in the output of a test that fails."""
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    print(f"torch.manual_seed({seed})")
    return seed


@pytest.fixture
def relative_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """||out - ref|| / ||ref|| in float64; NaN anywhere in out makes it NaN, which no bound accepts."""

    def measure(out: torch.Tensor, reference: torch.Tensor) -> float:
        difference = (out.double() - reference.double()).norm()
        return float(difference / reference.double().norm().clamp_min(1e-300))

    return measure
