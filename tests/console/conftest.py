from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schedtop.console.screens import base
from textual import _wait
from textual.css import stylesheet
from textual.css.model import RuleSet

# importlib import mode puts no test folder on the path; the synthetic engine is shared by these tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _styles_parsed_once() -> Iterator[None]:
    """Every console reads the same style sheets; an application of Textual's own keeps what it parsed, too."""
    parse, kept = stylesheet.parse, dict[Any, list[RuleSet]]()

    def parse_once(*sheet: Any, variable_tokens: dict[str, list[Any]] | None, **rest: Any) -> list[RuleSet]:
        variables = tuple((name, tuple(tokens)) for name, tokens in (variable_tokens or {}).items())
        key = (sheet, variables, *rest.items())
        if key not in kept:
            kept[key] = list(parse(*sheet, variable_tokens=variable_tokens, **rest))
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stylesheet, "parse", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _idle_is_seen_at_once() -> Iterator[None]:
    """A pilot asks thousands of times whether its application is idle: every few milliseconds, not every twenty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_wait, "SLEEP_GRANULARITY", 0.004)
        yield


@pytest.fixture(autouse=True)
def _said_until_the_next_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the seconds that words stay are over before a test has read them."""
    monkeypatch.setattr(base, "SAID_S", 3600.0)


@pytest.fixture(autouse=True)
def _outside_tmux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests inside tmux or screen gets no copy of what they copy."""
    for name in ("TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
