"""Who may import whom, read from the sources, and what importing the engine loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("console", "engine", "kernels", "themes")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

TORCH = {"torch", "triton", "transformers", "accelerate", "gguf"}
SCREEN = {"textual"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("schedtop", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(path: Path, node: ast.AST | None = None) -> Iterator[tuple[str, int]]:
    """Absolute names of everything a file imports, at the top or inside functions, and the line."""
    node = node or ast.parse(path.read_text(encoding="utf-8"), str(path))
    for child in ast.iter_child_nodes(node):
        if is_typing_only(child):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = absolute(path, child)
            yield from ((f"{base}.{alias.name}", child.lineno) for alias in child.names)
        else:
            yield from imports(path, child)


def absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def is_under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def allowed(path: Path, name: str) -> bool:
    """Whether a file may import a name."""
    room, *rest = path.relative_to(ROOT).parts
    top = name.split(".")[0]
    if top in ROOMS:
        return False  # the rooms are imported as schedtop.*, never bare
    match room:
        case "engine":
            if is_under(name, "schedtop.console", "schedtop.themes") or top in SCREEN:
                return False
            where_models_run = rest[0] == "runner"
            return where_models_run or not (top in TORCH or is_under(name, "schedtop.kernels"))
        case "kernels":
            return is_under(name, "schedtop.kernels") if top == "schedtop" else top not in SCREEN
        case "themes":
            return is_under(name, "schedtop.themes") or top in sys.stdlib_module_names
        case _:
            if top in TORCH:
                return False
            if rest[0] == "cli" or top != "schedtop":
                return True
            shared = ("engine.contract", "console", "themes")
            return is_under(name, *(f"schedtop.{room}" for room in shared))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    wrong = [f"line {line}: {name}" for name, line in imports(path) if not allowed(path, name)]
    assert not wrong, f"{path.relative_to(ROOT)} must not import " + "; ".join(wrong)


@pytest.mark.parametrize(
    ("file", "name", "fine"),
    [
        ("engine/serving/loop.py", "schedtop.console.app", False),
        ("engine/serving/loop.py", "schedtop.themes", False),
        ("engine/serving/loop.py", "textual.app.App", False),
        ("engine/serving/loop.py", "torch", False),
        ("engine/serving/loop.py", "kernels.norm", False),
        ("engine/sim/worker.py", "torch.nn", False),
        ("engine/runner/models/llama.py", "torch.nn", True),
        ("engine/runner/models/llama.py", "schedtop.kernels", True),
        ("engine/serving/loop.py", "schedtop.engine.contract.telemetry", True),
        ("kernels/norm.py", "schedtop.engine.handoff.plan", False),
        ("kernels/norm.py", "triton", True),
        ("themes/load.py", "numpy", False),
        ("themes/load.py", "tomllib", True),
        ("console/app.py", "schedtop.engine.step.engine", False),
        ("console/app.py", "schedtop.engine.contract.telemetry.StepRecord", True),
        ("console/app.py", "schedtop.engine.telemetry_extra", False),
        ("console/cli/main.py", "schedtop.engine.step.engine", True),
        ("console/cli/main.py", "torch", False),
    ],
)
def test_the_rules_themselves(file: str, name: str, fine: bool) -> None:
    assert allowed(ROOT / file, name) is fine


def loaded_by(statement: str) -> set[str]:
    """Top-level names and schedtop modules in a fresh interpreter after one statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import schedtop.engine.step.engine, schedtop.engine.build",
        "import schedtop.engine.contract.telemetry, schedtop.engine.contract.knobs",
        "from schedtop.engine.build import build_engine; from schedtop.engine.contract.config import EngineConfig;"
        " build_engine(EngineConfig(scheduler={'num_blocks': 64})).step()",
    ],
)
def test_a_simulating_engine_loads_neither_textual_nor_torch(statement: str) -> None:
    loaded = loaded_by(statement)
    assert not loaded & {"textual", "torch", "triton", "transformers", "schedtop.console", "schedtop.kernels"}


def test_importing_telemetry_loads_no_other_room_of_the_engine() -> None:
    loaded = loaded_by("import schedtop.engine.contract.telemetry, schedtop.engine.contract.knobs")
    ours = {name for name in loaded if name.startswith("schedtop.")}
    rooms = {"schedtop.engine", "schedtop.engine.contract"}
    assert ours == rooms | {"schedtop.engine.contract.telemetry", "schedtop.engine.contract.knobs"}


def test_help_loads_nothing_that_is_slow_to_load() -> None:
    loaded = loaded_by("import schedtop.console.cli.main")
    assert not loaded & {"numpy", "textual", "rich", "torch", "schedtop.engine.step.engine"}


def test_what_an_engine_is_started_from_loads_no_engine() -> None:
    """The engine builds in its own process while this one loads the console: it must be on its way early."""
    loaded = loaded_by(
        "from schedtop.console.cli import open_console, unused_flags; import schedtop.engine.channel.spawn"
    )
    assert not loaded & {"textual", "torch", "schedtop.engine.step.engine", "schedtop.engine.build"}
