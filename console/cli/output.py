"""The output of commands: all of it passes through here, so that no outside name reaches a terminal unescaped."""

from __future__ import annotations

import json
from typing import Any

import click
from schedtop.engine.contract.sanitize import harmless, json_text, one_line

ERASED_LINE = "\r\x1b[K"


def show(text: str, *, err: bool = False) -> None:
    """Text for reading, on stdout or stderr."""
    click.echo(harmless(text), err=err)


def show_json(document: Any) -> None:
    """One JSON document on a line of stdout."""
    click.echo(json_text(json.dumps(document)))


def show_progress(text: str) -> None:
    """The current activity, replacing the last such line on a terminal's stderr; an empty text erases it."""
    click.echo(ERASED_LINE + one_line(text), nl=False, err=True)
