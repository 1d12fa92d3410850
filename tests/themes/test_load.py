"""Themes: every one is whole and can be read; a broken file is told."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from schedtop.themes.load import ROLES, Theme, ThemeError, load_themes, read_theme

THEMES, _ = load_themes()
COLOURED = [theme for theme in THEMES.values() if not theme.ansi]
TEXTS = ("text", "muted", "accent", "ok", "warn", "breach", "decode", "prefill")
LABELLED = ("decode", "prefill", "draft", "held", "shared", "cached")
FILLS = ("decode", "prefill", "draft", "held", "shared", "cached", "unused", "empty", "watermark")


def luminance(colour: str) -> float:
    """WCAG 2.1 relative luminance."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _name(value: object) -> str:
    return value.name if isinstance(value, Theme) else str(value)


def test_the_promised_themes_are_there() -> None:
    assert {"dark", "light", "high-contrast", "colour-blind", "monochrome", "ansi"} <= set(THEMES)
    assert {theme.dark for theme in THEMES.values()} == {True, False}


@pytest.mark.parametrize(("theme", "role"), product(COLOURED, TEXTS), ids=_name)
def test_text_can_be_read(theme: Theme, role: str) -> None:
    for under in ("background", "surface", "cursor"):
        assert contrast(theme.colours[role], theme.colours[under]) >= 4.5, (theme.name, role, under)


@pytest.mark.parametrize(("theme", "role"), product(COLOURED, LABELLED), ids=_name)
def test_labels_on_fills_can_be_read(theme: Theme, role: str) -> None:
    assert contrast(theme.colours[role], theme.colours["background"]) >= 4.5, (theme.name, role)


@pytest.mark.parametrize(("theme", "role"), product(COLOURED, FILLS), ids=_name)
def test_fills_can_be_seen(theme: Theme, role: str) -> None:
    assert contrast(theme.colours[role], theme.colours["background"]) >= 3.0, (theme.name, role)


def test_monochrome_uses_no_colour() -> None:
    assert set(THEMES["monochrome"].colours.values()) == {"default"}


def written(tmp_path: Path, **changes: str) -> Path:
    colours = dict.fromkeys(ROLES, "#000000") | changes
    path = tmp_path / "mine.toml"
    path.write_text("[colours]\n" + "".join(f'{role} = "{colour}"\n' for role, colour in colours.items()))
    return path


def test_a_whole_theme_is_read(tmp_path: Path) -> None:
    theme = read_theme(written(tmp_path))
    assert (theme.name, theme.fills, theme.ansi) == ("mine", "solid", False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"text": "red-ish"}, "write #rrggbb"), ({"txt": "#000000"}, "no role is called txt")],
)
def test_a_bad_colour_or_role_is_named(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(ThemeError, match=words):
        read_theme(written(tmp_path, **changes))


@pytest.mark.parametrize(
    "content", ["", "colours = 3", "[colours]\ntext = 4", "x = [", "[colours]\ntext = '#000000'"]
)
def test_broken_files_are_told_and_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.toml").write_text(content)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    themes, failures = load_themes(tmp_path)
    assert set(themes) == set(THEMES)
    assert sorted(failure.path for failure in failures) == ["bad.toml", "bytes.toml"]
