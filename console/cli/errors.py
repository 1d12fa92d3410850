"""How errors leave the program: one line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys

import click

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
        say(f"{_one_line(error.format_message())} (see {command} --help)")
        return BAD_INPUT
    if isinstance(error, click.ClickException):
        say(_one_line(error.format_message()))
        return error.exit_code
    # Errors of settings, files and channels are our own, each with one clear line.
    if type(error).__module__.startswith("schedtop."):
        say(_one_line(str(error)))
        return BAD_INPUT
    if isinstance(error, OSError) and error.strerror:
        say(f"{error.filename or 'input'}: {error.strerror}")
        return BAD_INPUT
    raise error


def say(line: str) -> None:
    """One line for the user on stderr."""
    print(f"schedtop: {line}", file=sys.stderr, flush=True)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def check_writable(path: str) -> None:
    """Raise `CommandError` if a new file cannot be made at `path`; leaves nothing behind."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path):
        raise CommandError(f"{path} exists already: name another file")
    if not os.path.isdir(folder):
        raise CommandError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{path}: the folder {folder} cannot be written")
