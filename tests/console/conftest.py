from __future__ import annotations

import sys
from pathlib import Path

import pytest

# importlib import mode puts no test folder on the path; the synthetic engine is shared by these tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _outside_tmux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests inside tmux or screen gets no copy of what they copy."""
    for name in ("TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
