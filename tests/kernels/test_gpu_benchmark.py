"""The GPU benchmark on a machine that has torch, Triton, transformers and NumPy alone: the worker runs there, too."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
THERE = {"torch", "triton", "transformers", "numpy", "tokenizers"}  # the last comes with transformers
STOOD_IN_FOR = {"msgspec"}


def file_of(module: str) -> Path | None:
    """Where a module of the project lies; None for others and for what is no module."""
    top, *names = module.split(".")
    if top != "schedtop" or not names:
        return None
    path = ROOT.joinpath(*names)
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()), None)


def imports(nodes: list[ast.stmt]) -> Iterator[str]:
    """What these statements import, if nothing about it is conditional."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_the_worker_needs_no_other_package() -> None:
    worker = ast.parse((ROOT / "benchmarks" / "gpu_parts" / "worker.py").read_text())
    todo = list(imports([node for node in ast.walk(worker) if isinstance(node, ast.stmt)]))
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        if (path := file_of(module)) is not None:
            todo += imports(ast.parse(path.read_text()).body)
    assert "schedtop.engine.runner.worker" in seen
    packages = {name.partition(".")[0] for name in seen} - sys.stdlib_module_names
    assert packages - {"schedtop", "gpu_parts"} <= THERE | STOOD_IN_FOR


def test_what_stands_in_for_msgspec_makes_the_hand_offs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        stand_in: Any = importlib.import_module("gpu_parts.stand_in")
    monkeypatch.setitem(sys.modules, "msgspec", SimpleNamespace(Struct=stand_in.Struct))
    reported = runpy.run_path(str(ROOT / "engine" / "contract" / "telemetry.py"))
    arrival = reported["Arrival"](3, "r", 0.5, prompt_tokens=7, max_tokens=2)
    assert (arrival.number, arrival.prompt_tokens, arrival.priority) == (3, 7, 0)
    plans = runpy.run_path(str(ROOT / "engine" / "handoff" / "plan.py"))
    started = plans["Started"](0, None, [1, 2], False)
    assert (started.block_table, started.further) == ([1, 2], ())
    names = plans["StepPlan"].__struct_fields__
    assert plans["StepPlan"](**{**dict.fromkeys(names), "ids": ["a", "b"]}).num_rows == 2
