"""The examples of docs/console.md are what the console takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from schedtop.console.actions import ACTIONS, REPLAY, Registry, load_keymap
from schedtop.console.knobs.presets import load_presets
from schedtop.themes.load import load_themes

PAGE = Path(__file__).parents[2] / "docs" / "console.md"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings folder with the page's examples."""
    keys, theme, presets = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "themes").mkdir()
    (tmp_path / "themes" / "dusk.toml").write_text(theme, encoding="utf-8")
    (tmp_path / "keys.toml").write_text(keys, encoding="utf-8")
    (tmp_path / "presets.toml").write_text(presets, encoding="utf-8")
    return tmp_path


def test_keys(settings: Path) -> None:
    keymap = load_keymap(settings / "keys.toml")
    for registry in (Registry(keymap), Registry(keymap, REPLAY)):
        found = registry.find("X", "")
        assert found is not None and found.id == "explain" and registry.find("x", "") is None
        assert registry["mouse"].keys == ()


def test_the_named_actions_exist() -> None:
    names = {action.id for action in ACTIONS}
    listed = PAGE.read_text(encoding="utf-8").split("The names:")[1].split("and the others")[0]
    assert set(re.findall(r"`(\w+)`", listed)) <= names


def test_theme(settings: Path) -> None:
    themes, failures = load_themes(settings / "themes")
    assert not failures and themes["dusk"].title == "Dusk"


def test_presets(settings: Path) -> None:
    found, problems = load_presets(settings)
    assert not problems and {"night", "careful"} <= {preset.name for preset in found if preset.own}
