"""Prints the versions of everything that schedtop and its extras need here, as a constraints file for pip.

No index and no hash: whichever registry pip is set up with serves them.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("engine", "http", "operators", "parquet", "test")


def needed(name: str, extras: tuple[str, ...]) -> list[Requirement]:
    """What a package that is installed requires here, with these extras."""
    found = []
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        places = [{**default_environment(), "extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(place) for place in places):
            found.append(requirement)
    return found


def closure() -> dict[str, str]:
    """Name and version of each package, its local part (`+cpu`) left out."""
    versions: dict[str, str] = {}
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    texts = [
        *project["dependencies"],
        *(text for extra in EXTRAS for text in project["optional-dependencies"][extra]),
    ]
    todo = [Requirement(text) for text in texts]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            versions[name] = distribution(name).version.partition("+")[0]
            todo += needed(name, tuple(requirement.extras))
        except PackageNotFoundError:
            print(f"# {requirement} is not installed here", file=sys.stderr)
    return versions


print("# Versions that CI installs, for pip's -c. `make lock` writes it anew from what is installed.")
for name, version in sorted(closure().items()):
    print(f"{name}=={version}")
