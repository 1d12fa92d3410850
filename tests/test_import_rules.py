"""What importing a part of the program loads. Who may import whom is checked by import-linter (`make lint`)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_room_has_its_place_in_the_contracts() -> None:
    """A room that no contract names would be free to import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {room for layer in contracts[0]["layers"] for room in layer.split(" | ")}
    rooms = {f"schedtop.engine.{path.stem}" for path in (ROOT / "engine").iterdir() if path.name[0] not in "._"}
    assert layers == rooms - {"schedtop.engine.py"}
    assert set(contracts[3]["forbidden_modules"]) == rooms - {
        "schedtop.engine.py",
        "schedtop.engine.contract",
    }


def test_no_room_is_imported_by_its_bare_name() -> None:
    """`kernels` or `engine` would resolve where the checkout is the working directory, and nowhere else."""
    bare = []
    for path in (
        path for room in ("console", "engine", "kernels", "themes") for path in (ROOT / room).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
            bare += [
                f"{path}: {name}"
                for name in names
                if name.split(".")[0] in ("console", "engine", "kernels", "themes")
            ]
    assert not bare


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
