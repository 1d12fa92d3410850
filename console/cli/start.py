"""The installed `schedtop`: set-up before the command line itself is loaded, and clean-up after it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def program() -> None:
    """Run the command line, and end the process."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C while modules load: exit without a traceback
    _open_streams()
    from schedtop.console.cli.main import main
    from schedtop.engine.serving.quiet_exit import leave

    signal.signal(signal.SIGINT, handler)
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # the writer has reported it; the rest is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    leave(code)


def _open_streams() -> None:
    """Standard streams that were closed, so that no file opened later is taken for one.

    Writing to a closed stdout fails, as it should; nobody could read about a closed stderr.
    """
    modes = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
    for number, (name, mode) in enumerate(zip(("stdin", "stdout", "stderr"), modes, strict=True)):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.open(os.devnull, mode)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
