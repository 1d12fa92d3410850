"""A theme for Textual's own widgets: inputs, lists, scroll bars."""

from __future__ import annotations

from schedtop.themes.load import Theme
from textual.theme import Theme as TextualTheme


def textual_theme(theme: Theme) -> TextualTheme:
    """What Textual's own widgets (inputs, scroll bars) need of a theme."""
    colours = {role: _textual_colour(colour) for role, colour in theme.colours.items()}
    return TextualTheme(
        name=theme.name,
        primary=colours["accent"],
        secondary=colours["muted"],
        warning=colours["warn"],
        error=colours["breach"],
        success=colours["ok"],
        accent=colours["accent"],
        foreground=colours["text"],
        background=colours["background"],
        surface=colours["surface"],
        panel=colours["surface"],
        dark=theme.dark,
        ansi=theme.ansi,
        variables=_ANSI_VARIABLES if theme.ansi else {},
    )


_ANSI_VARIABLES = {
    "ansi-background": "ansi_default",
    "ansi-foreground": "ansi_default",
    "border-blurred": "ansi_default",
    "block-cursor-foreground": "ansi_default",
    "block-cursor-background": "ansi_default",
    "block-cursor-text-style": "reverse",
    "input-cursor-background": "ansi_default",
    "input-cursor-foreground": "ansi_default",
    "input-cursor-text-style": "reverse",
    "input-selection-background": "ansi_default",
    "input-selection-foreground": "ansi_default",
    "screen-selection-background": "ansi_default",
    "screen-selection-foreground": "ansi_default",
}
"""What Textual's own stylesheet asks of a theme that uses the terminal's colours."""


def _textual_colour(colour: str) -> str:
    return colour if colour.startswith("#") else f"ansi_{colour}"
