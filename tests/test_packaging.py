"""What is built is what is here: every package, its data, and a command that runs. Editable installs hide gaps."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("console", "engine", "kernels", "themes")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_folders() -> set[str]:
    """Every folder of the rooms with Python files, as a package name."""
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {".".join(("schedtop", *folder.parts)) for folder in folders}


def data_files() -> set[str]:
    """What packages hold beside Python: layouts, themes, C sources, type markers; not notes, not what was built."""
    return {
        f"schedtop/{path.relative_to(ROOT)}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so", ".md")
    }


def test_every_package_is_listed(project: dict[str, Any]) -> None:
    assert set(project["tool"]["setuptools"]["packages"]) == package_folders()


def test_every_package_is_one(project: dict[str, Any]) -> None:
    missing = [
        name
        for name in project["tool"]["setuptools"]["packages"]
        if not ROOT.joinpath(*name.split(".")[1:], "__init__.py").exists()
    ]
    assert not missing


def test_the_import_root_is_mapped_to_the_four_rooms(project: dict[str, Any]) -> None:
    assert project["tool"]["setuptools"]["package-dir"] == {f"schedtop.{room}": room for room in ROOMS}


def test_the_base_install_needs_nothing_that_runs_models(project: dict[str, Any]) -> None:
    heavy = ("torch", "transformers", "triton", "accelerate", "gguf")
    assert not [line for line in project["project"]["dependencies"] if line.startswith(heavy)]
    extras = project["project"]["optional-dependencies"]
    assert any(line.startswith("torch>=2.11,<2.14") for line in extras["engine"])
    assert "test" in extras


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy, so that no earlier build's leftovers lie in the way."""
    pytest.importorskip("setuptools", minversion="77")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    build = f"import setuptools.build_meta as b; b.build_wheel({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {f"schedtop/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert built == modules | data_files()
    assert "schedtop/__init__.py" not in built, "schedtop itself is a namespace"


def test_a_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile, project: dict[str, Any]) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "schedtop = schedtop.console.cli.start:program" in wheel.read(entry_points).decode()
    assert any(name.endswith("LICENSE") for name in wheel.namelist())
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    assert f"Version: {project['project']['version']}" in wheel.read(metadata).decode()


def test_what_the_wheel_holds_can_be_imported_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import schedtop.engine.build, schedtop.engine.golden.case\n"
        "print(schedtop.engine.build.__file__)"
    )
    # Without site hooks an editable install cannot answer for the wheel; its dependencies come by path.
    paths = [path for path in sys.path if path.endswith("site-packages")]
    code = f"import sys; sys.path += {paths!r}\n" + code
    done = subprocess.run([sys.executable, "-S", "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().startswith(str(tmp_path))
