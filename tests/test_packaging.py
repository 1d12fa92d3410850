"""What is built is what is here: every package, its data, and a command that runs. Editable installs hide gaps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ("console", "engine", "kernels", "themes")
EXTENSION = "schedtop/engine/runner/models/_native.abi3.so"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_folders() -> set[str]:
    """Every folder of the rooms with Python files, as a package name."""
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {".".join(("schedtop", *folder.parts)) for folder in folders}


def data_files() -> set[str]:
    """What packages hold beside Python: layouts, themes, types; not notes, not what was built, nor from what."""
    return {
        f"schedtop/{path.relative_to(ROOT)}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so", ".md", ".c", ".h")
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


def build_wheel(folder: Path, **environment: str) -> zipfile.ZipFile:
    """A wheel built from a copy, so that no earlier build's leftovers lie in the way."""
    pytest.importorskip("setuptools", minversion="77")
    source, target = folder / "source", folder / "wheel"
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"-O3"' in settings
    # Compiled without optimising: what is tried here is what a wheel holds, and that it runs.
    (source / "pyproject.toml").write_text(settings.replace('"-O3"', '"-O0"'), encoding="utf-8")
    build = f"import setuptools.build_meta as b; b.build_wheel({str(target)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def bare_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built where there is no C compiler."""
    return build_wheel(tmp_path_factory.mktemp("bare"), CC="no-such-compiler")


def contents(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_a_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile, bare_wheel: zipfile.ZipFile) -> None:
    modules = {f"schedtop/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert contents(bare_wheel) == modules | data_files()
    assert "schedtop/__init__.py" not in contents(bare_wheel), "schedtop itself is a namespace"
    compiled = {EXTENSION} if shutil.which("cc") else set()
    assert contents(wheel) == modules | data_files() | compiled


def test_a_wheel_says_what_it_runs_on(wheel: zipfile.ZipFile) -> None:
    """One build serves every Python from 3.11 on."""
    if EXTENSION not in wheel.namelist():
        pytest.skip("no C compiler here")
    assert "-cp311-abi3-" in Path(wheel.filename or "").name


def test_a_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile, project: dict[str, Any]) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "schedtop = schedtop.console.cli.start:program" in wheel.read(entry_points).decode()
    assert any(name.endswith("LICENSE") for name in wheel.namelist())
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    assert f"Version: {project['project']['version']}" in wheel.read(metadata).decode()


def run_from(wheel: zipfile.ZipFile, folder: Path, code: str) -> str:
    """What `code` prints where the wheel is installed and the checkout is not."""
    wheel.extractall(folder)
    # Without site hooks an editable install cannot answer for the wheel; its dependencies come by path.
    paths = [str(folder), *(path for path in sys.path if path.endswith("site-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_wheel_runs_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    code = (
        "import schedtop.console.cli.start as start\n"
        "assert start.__file__.startswith(sys.path[0])\n"
        "sys.argv = 'schedtop run --device sim:llama-3.1-8b@h100 --workload mixed --limit 3 --json'.split()\n"
        "start.program()"
    )
    assert json.loads(run_from(wheel, tmp_path, code))["requests"]["finished"] == 3


@pytest.mark.parametrize("built", ["wheel", "bare_wheel"])
def test_the_wheels_compiled_routines(built: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")
    wheel: zipfile.ZipFile = request.getfixturevalue(built)
    code = (
        "import torch\n"
        "from schedtop.engine.runner.models.native import native_choices\n"
        "print(*(choice.instructions for choice in native_choices(torch.float32)))"
    )
    found = run_from(wheel, tmp_path, code).split()
    assert found[-1:] == (["baseline"] if EXTENSION in wheel.namelist() else [])


def test_the_lock_holds_every_dependency_within_its_bounds(project: dict[str, Any]) -> None:
    """CI installs from it, whichever registry serves: names and versions alone."""
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    texts = [*project["project"]["dependencies"]]
    texts += [text for extra in project["project"]["optional-dependencies"].values() for text in extra]
    for requirement in map(Requirement, texts):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement
        bounded = any(part.operator in ("<", "<=", "==", "~=") for part in requirement.specifier)
        assert bounded, f"{requirement}: a major version that breaks would be taken"
