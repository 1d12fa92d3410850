"""What the terminal can show, judging by its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_COLOURLESS = re.compile(r"vt(52|[124]\d\d|3[02]0|5[12]0)(-.*)?|.+-(m|mono)")


def speaks_utf8(environ: Mapping[str, str] = os.environ) -> bool:
    """False where the locale names another encoding, or `LC_ALL` is the C locale.

    Python itself turns a C locale from elsewhere into C.UTF-8, and sets `LC_CTYPE` so; it lets `LC_ALL` be.
    """
    name = next((environ[key] for key in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(key)), "")
    if name in ("C", "POSIX"):
        return name != environ.get("LC_ALL")
    _, dot, encoding = name.partition(".")
    return not dot or encoding.partition("@")[0].lower().replace("-", "") == "utf8"


def has_colours(environ: Mapping[str, str] = os.environ) -> bool:
    """False for the DEC terminals that know none, and for descriptions that say so."""
    return bool(environ.get("COLORTERM")) or not _COLOURLESS.fullmatch(environ.get("TERM", ""))
