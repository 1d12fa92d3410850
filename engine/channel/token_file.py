"""The token that every TCP connection presents: the kernel knows the owner of a Unix socket's other end, but not of a
TCP port's."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from platformdirs import user_config_path
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.files.output_files import make_folder, open_new

VARIABLE = "SCHEDTOP_TOKEN_FILE"
"""Names another token file, for an engine as for those who connect."""

_MAX_CHARS = 512


def token_path(named: str | None = None) -> Path:
    """The file that was named, by hand or in the environment; else the user's own."""
    return Path(named or os.environ.get(VARIABLE) or user_config_path("schedtop") / "token")


def read_token(path: Path) -> str:
    """The token in `path`; empty if the file does not exist. Raises `ChannelError` for one that others may read."""
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            token = file.read(_MAX_CHARS).strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ChannelError(f"cannot read the token file {path}: {getattr(error, 'strerror', error)}") from None
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ChannelError(f"the token file {path} must be yours alone: run chmod 600 on it")
    if not token:
        raise ChannelError(f"the token file {path} is empty: remove it, and the next engine makes a new one")
    return token


def token_for(named: str | None) -> str:
    """The token a client presents; empty if it has no file. Raises `ChannelError` where the named file is not there."""
    token = read_token(token_path(named))
    if named and not token:
        raise ChannelError(f"there is no token file {named}: the engine says at its start where its own lies")
    return token


def ensure_token(path: Path) -> str:
    """The token in `path`, made with mode 0600 at first use. Raises `ChannelError`."""
    if token := read_token(path):
        return token
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        make_folder(path.parent)
        with open_new(draft) as file:
            file.write(f"{secrets.token_urlsafe(32)}\n".encode())
        try:
            os.link(draft, path)  # written whole, and never over one that another engine has just made
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise ChannelError(f"cannot make the token file {path}: {error.strerror or error}") from None
    return read_token(path)
