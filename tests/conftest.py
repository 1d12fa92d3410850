"""Hypothesis profiles: quick locally, thorough in CI; `SCHEDTOP_HYPOTHESIS=endless` for long runs.

Without an NVIDIA driver, kernels run through Triton's interpreter, which must be chosen before triton is imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(
    prefix="schedtop-state-"
)  # engines that are killed leave files there
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_always = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
settings.register_profile("quick", _always, max_examples=12, stateful_step_count=20, derandomize=True)
settings.register_profile("thorough", _always, max_examples=200, stateful_step_count=50, print_blob=True)
settings.register_profile("endless", _always, max_examples=3000, stateful_step_count=50)
settings.load_profile(os.environ.get("SCHEDTOP_HYPOTHESIS") or ("thorough" if os.environ.get("CI") else "quick"))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their parameter: what packs them may write the time of day into them.

    The workers of a run refuse to start unless all of them find tests of the same names.
    """
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """What was imported stays, torch and transformers too: the garbage collector need not look through it again."""
    gc.freeze()


@pytest.fixture(scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter patches its language again at every call within a kernel; once a launch is enough.

    It is a third of the time of an interpreted kernel.
    """
    interpreter = None
    with suppress(ImportError):
        interpreter = importlib.import_module("triton.runtime.interpreter")
    patch_language = getattr(interpreter, "_patch_lang", None)
    patched: set[str] = set()

    def patch_once(fn: Any) -> Any:
        if fn.__module__ in patched:
            return SimpleNamespace(restore=lambda: None)
        outermost = not patched
        patched.add(fn.__module__)
        scope = patch_language(fn)
        if outermost:
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        return scope

    with pytest.MonkeyPatch.context() as patch:
        if patch_language is not None:
            patch.setattr(interpreter, "_patch_lang", patch_once)
        yield
