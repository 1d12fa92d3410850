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


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChannelServer]:
    """A listening server with small outboxes, on either kind of address."""
    address = str(tmp_path / "engine.sock") if request.param == "unix" else "tcp:127.0.0.1:0"
    with ChannelServer(address, outbox_bytes=1 << 16, max_peers=3) as server:
        yield server
