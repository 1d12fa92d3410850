"""Rich styles by role, from a theme."""

from __future__ import annotations

from functools import lru_cache

from rich.color import Color
from rich.style import Style
from schedtop.themes.load import Theme

BOLD, LIGHT, REVERSED = Style(bold=True), Style(bold=False), Style(reverse=True)
BOLD_REVERSED = BOLD + REVERSED
"""To be added to others: made anew, each costs more than the line it is for."""

_UNDER = ("background", "surface", "cursor", "late")
_TINT = 0.85
"""How far the ground of a late row is from the colour of a breach towards the background."""


@lru_cache(256)
def clickable(action: str) -> Style:
    """Where the mouse carries out an action."""
    return Style(meta={"@click": f"screen.act('{action}')"})


class Palette:
    """What the panels paint with. `palette["breach"]` is that role's text on the background.

    `solid`: classes may be drawn as smooth blocks of colour; if not, each has its own texture.
    A faded palette draws every role towards the background, for stale values.
    """

    def __init__(self, theme: Theme, solid: bool, faded: bool = False) -> None:
        self.theme = theme
        self.solid = solid and theme.fills == "solid" and not theme.ansi
        self.faded = faded
        self._styles: dict[tuple[str, str], Style] = {}
        self._fills: dict[tuple[str, str], Style] = {}

    def __getitem__(self, role: str) -> Style:
        return self.on(role, "background")

    def on(self, role: str, under: str) -> Style:
        """Text of `role` on one of the background colours."""
        style = self._styles.get((role, under))
        if style is None:
            style = self._styles[role, under] = self._make(role, under)
        return style

    def fill(self, lower: str, upper: str) -> Style:
        """For partial blocks: the glyph in the colour of `lower`, the rest of the cell in that of `upper`."""
        style = self._fills.get((lower, upper))
        if style is None:
            style = self._fills[lower, upper] = Style(color=self._colour(lower), bgcolor=self._colour(upper))
        return style

    def label(self, role: str) -> Style:
        """Bold text in the background's colour on a fill of `role`."""
        key = (role, "label")
        style = self._fills.get(key)
        if style is None:
            style = Style(color=self._colour("background"), bgcolor=self._colour(role), bold=True)
            self._fills[key] = style
        return style

    def texture(self, role: str) -> Style:
        """A fill with its letter faintly on it, so that colour is not the only clue."""
        key = (role, "texture")
        style = self._fills.get(key)
        if style is None:
            fill = self._colour(role)
            letter = _blend(fill.get_truecolor().hex, self.theme.colours["background"], 0.28)
            style = self._fills[key] = Style(color=letter, bgcolor=fill)
        return style

    def _make(self, role: str, under: str) -> Style:
        attributes = f"{self.theme.styles.get(role, '')} {self.theme.styles.get(under, '')}"
        background = None if self.theme.ansi else self._colour(under)
        colour = self._colour(role) if self.theme.colours[role] != "default" else None
        return Style(color=colour, bgcolor=background) + Style.parse(attributes.strip() or "none")

    def _colour(self, role: str) -> Color:
        if role == "late":
            return _blend(self.theme.colours["breach"], self.theme.colours["background"], _TINT)
        name = self.theme.colours[role]
        if self.faded and role not in _UNDER and name.startswith("#"):
            return _blend(name, self.theme.colours["background"], 0.5)
        return Color.parse(name)


@lru_cache(256)
def _blend(colour: str, towards: str, part: float) -> Color:
    first, second = Color.parse(colour).get_truecolor(), Color.parse(towards).get_truecolor()
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(first, second, strict=True))
    return Color.from_rgb(red, green, blue)
