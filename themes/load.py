"""Themes: named colours and text styles by role, one TOML file each; a broken file is reported, not raised."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

DEFAULT = "dark"

ROLES = (
    "background",
    "surface",
    "text",
    "muted",
    "faint",
    "rule",
    "accent",
    "cursor",
    "ok",
    "warn",
    "breach",
    "decode",
    "prefill",
    "draft",
    "unused",
    "held",
    "shared",
    "cached",
    "empty",
    "watermark",
)
"""Every colour a theme must give. `background`, `surface` and `cursor` are behind text; the others are drawn."""

FILLS = ("solid", "pattern")
ATTRIBUTES = frozenset(("bold", "dim", "italic", "underline", "reverse"))
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}|default|(bright_)?(black|red|green|yellow|blue|magenta|cyan|white)")


class ThemeError(ValueError):
    """A theme file that cannot be used; the text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Theme:
    """`colours` maps each role to `#rrggbb`, an ANSI name or `default`; `styles` adds text attributes to roles.

    `fills` is `solid` (smooth blocks distinguished by colour, order and letters) or `pattern` (every class has its
    own texture). `ansi` themes use the terminal's own colours only.
    """

    name: str
    title: str
    dark: bool
    fills: str
    ansi: bool
    colours: Mapping[str, str]
    styles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A theme file that was left out, and why."""

    path: str
    reason: str


def load_themes(user_folder: Path | None = None) -> tuple[dict[str, Theme], list[Failure]]:
    """The built-in themes and those of `user_folder` (which win on equal names), and the files left out."""
    themes = dict(_builtin())
    failures: list[Failure] = []
    for path in _files(user_folder):
        try:
            theme = read_theme(path)
        except ThemeError as error:
            failures.append(Failure(path.name, str(error)))
        else:
            themes[theme.name] = theme
    return themes, failures


def read_theme(path: Path) -> Theme:
    """The theme in a TOML file. Raises `ThemeError`."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ThemeError(f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ThemeError(f"is not valid TOML: {error}") from None
    except RecursionError:
        raise ThemeError("is nested too deeply") from None
    return _theme(path.stem, raw)


@cache
def _builtin() -> dict[str, Theme]:
    return {theme.name: theme for theme in map(read_theme, sorted(Path(__file__).parent.glob("*.toml")))}


def _files(folder: Path | None) -> Iterator[Path]:
    if folder is not None and folder.is_dir():
        yield from sorted(folder.glob("*.toml"))


def _theme(name: str, raw: Mapping[str, object]) -> Theme:
    colours = _table(raw, "colours")
    styles = _table(raw, "styles")
    if missing := [role for role in ROLES if role not in colours]:
        raise ThemeError(f"[colours] lacks {', '.join(missing)}")
    if unknown := [role for role in (*colours, *styles) if role not in ROLES]:
        raise ThemeError(f"no role is called {', '.join(unknown)}; the roles are {', '.join(ROLES)}")
    for role, colour in colours.items():
        if not _COLOUR.fullmatch(colour):
            raise ThemeError(f"{role} = {colour!r}: write #rrggbb, an ANSI colour name or default")
    for role, style in styles.items():
        if not ATTRIBUTES.issuperset(style.split()):
            raise ThemeError(f"{role} = {style!r}: write any of {', '.join(sorted(ATTRIBUTES))}")
    fills = raw.get("fills", "solid")
    if fills not in FILLS:
        raise ThemeError(f"fills = {fills!r}: write {' or '.join(FILLS)}")
    return Theme(
        name=name,
        title=str(raw.get("title", name)),
        dark=bool(raw.get("dark", True)),
        fills=str(fills),
        ansi=not any(colour.startswith("#") for colour in colours.values()),
        colours=colours,
        styles=styles,
    )


def _table(raw: Mapping[str, object], key: str) -> dict[str, str]:
    table = raw.get(key, {})
    if not isinstance(table, dict) or not all(isinstance(item, str) for item in table.values()):
        raise ThemeError(f"[{key}] must be a table of texts")
    return table
