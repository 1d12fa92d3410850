"""Removes the sockets of killed engines, which nothing else would."""

from __future__ import annotations

import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"engine-(\d+)-[0-9a-f]{8}\.sock")
"""As `listen.default_address` makes them: the id is that of the process that chose the name."""


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what killed engines of this user left in `folder`; the paths removed.

    A socket is left alone while somebody listens on it, and while the process that named it lives: an engine that
    has bound its socket and not listened yet refuses as a dead one does.
    """
    removed = []
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found is not None and not _lives(int(found[1])) and _is_own_socket(path) and _refuses(path):
                with suppress(OSError):
                    path.unlink()
                    removed.append(path)
    return removed


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _is_own_socket(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid()


def _refuses(path: Path) -> bool:
    """True if the kernel says that nothing listens; any other answer is not proof."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog would hold a blocking one
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
