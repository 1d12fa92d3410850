from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.http.served import Served, serving


@pytest.fixture(scope="session", autouse=True)
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A token of the tests' own."""
    path = tmp_path_factory.mktemp("token") / "token"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCHEDTOP_TOKEN_FILE", str(path))
        yield path


@pytest.fixture(scope="module")
def served(token_file: Path) -> Iterator[Served]:
    """One server for the tests of a file."""
    with serving() as server:
        yield server
