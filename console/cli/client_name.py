"""The name of this console's user, sent with commands."""

from __future__ import annotations

import getpass
import os


def who() -> str:
    """The user and the terminal, so that other consoles see who changed what."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    try:
        return f"{user}@{os.ttyname(0).removeprefix('/dev/')}"
    except OSError:
        return user
