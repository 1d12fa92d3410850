"""Exits the process without the noise that Triton's bindings print at interpreter exit."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Exit with `code`; everything must be closed by now.

    Where Triton is loaded the interpreter's teardown is skipped: its bindings would print a page about leaked
    instances over the last message to the user.
    """
    if "triton" not in sys.modules:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
