"""What may be read as an input file."""

from __future__ import annotations

from pathlib import Path


def odd_file(path: Path) -> str | None:
    """Why `path` is not read although it exists (a pipe could block forever, a device never end), or None.

    `-` is refused where no file has that name."""
    if str(path) == "-" and not path.exists():
        return "-: standard input is not read: name a file"
    try:
        odd = path.exists() and not (path.is_file() or path.is_dir())
    except (OSError, ValueError):
        return None
    return f"{path}: a pipe, socket or device: name a file" if odd else None


def looks_like_case(path: Path) -> bool:
    """A JSON object that opens with the keys of a case; reads only its first bytes."""
    if odd_file(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(65_536)
    except OSError:
        return False
    return head.lstrip()[:1] == b"{" and b'"config"' in head and b'"block_size"' in head
