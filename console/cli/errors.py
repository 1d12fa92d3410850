"""How errors reach the user: one line on stderr, and an exit code."""

from __future__ import annotations

import errno
import math
import os
import sys
from pathlib import Path

import click
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.sanitize import one_line

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


class CommandError(click.ClickException):
    """Bad input found by a command: one line, exit code 2."""

    exit_code = BAD_INPUT


def exit_code_of(error: BaseException) -> int:
    """Print what an error means to a user; unknown ones are bugs, and pass through as tracebacks."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "schedtop"
        say(f"{error.format_message()} (see {command} --help)")
        return BAD_INPUT
    if isinstance(error, click.ClickException):
        say(error.format_message())
        return error.exit_code
    if _lacks_memory(error):
        say("not enough memory: give it more, or ask for less (a smaller model or pool, a part of the file)")
        return FAILED
    # Errors of settings, files and channels already have one clear line each.
    if type(error).__module__.startswith("schedtop."):
        say(str(error))
        return BAD_INPUT
    if isinstance(error, OSError) and error.strerror:
        # Files are opened by name; only what is already open, the standard output, fails without one.
        say(f"{error.filename or 'standard output'}: {error.strerror}")
        return BAD_INPUT
    raise error


def _lacks_memory(error: BaseException) -> bool:
    """Python's own error, the system's, and those that libraries make of them while they are loaded."""
    words = str(error)
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, ImportError) and "failed to map segment" in words)
        or (
            isinstance(error, RuntimeError)
            and ("can't start new thread" in words or "can't allocate memory" in words)
        )
    )


def say(line: str) -> None:
    """One line for the user on stderr, without control characters."""
    print(f"schedtop: {short_line(line)}", file=sys.stderr, flush=True)


MAX_LINE_CHARS = 2000


def short_line(text: str, most: int = MAX_LINE_CHARS) -> str:
    """`text` as one harmless line; the middle of a very long one is left out."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 2 :]}"


def check_positive(flag: str, value: float) -> None:
    """Raise `CommandError` for what is not a number of seconds to wait for."""
    if not 0 < value < math.inf:
        raise CommandError(f"{flag} {value:g}: must be a finite number above 0")


def check_name(path: str) -> None:
    """Raise `CommandError` for what names no file to write."""
    if not path:
        raise CommandError("the file to write needs a name")
    if path == "-":
        raise CommandError("-: only export writes to standard output: name a file (./- is one of that name)")


def check_writable(path: str) -> None:
    """Raise `CommandError` if a new file cannot be made at `path`; leaves nothing behind."""
    check_name(path)
    folder = os.path.dirname(os.path.abspath(path))
    if odd := odd_file(Path(path)):
        raise CommandError(odd)
    if os.path.isdir(path):
        raise CommandError(f"{path} is a folder: name a file")
    if os.path.lexists(path):
        raise CommandError(f"{path} exists already: name another file")
    if not os.path.isdir(folder):
        raise CommandError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{path}: the folder {folder} cannot be written")
