from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from schedtop.engine.channel import ChannelServer


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module `fake.py` beside this file."""
    spec = importlib.util.spec_from_file_location("schedtop_test_fake", Path(__file__).parent / "fake.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file where engines and consoles of a test find the token; nobody has made it yet."""
    monkeypatch.setenv("SCHEDTOP_TOKEN_FILE", str(tmp_path / "own" / "token"))
    return tmp_path / "own" / "token"


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path, own_token: Path) -> Iterator[ChannelServer]:
    """A listening server with small outboxes, on either kind of address."""
    address = str(tmp_path / "engine.sock") if request.param == "unix" else "tcp:127.0.0.1:0"
    with ChannelServer(address, outbox_bytes=1 << 16, max_peers=3) as server:
        yield server
