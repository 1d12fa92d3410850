"""Copying inside tmux, which by default lets no program but itself write to the terminal's clipboard."""

from __future__ import annotations

import subprocess

WITHIN_S = 2.0


def into_tmux(words: str) -> bool:
    """Give `words` to tmux, for its buffer and through it for the clipboard; False where it takes none.

    tmux knows `load-buffer -w` from 3.2 on.
    """
    command = ["tmux", "load-buffer", "-w", "-"]
    try:
        done = subprocess.run(
            command, input=words.encode("utf-8", "replace"), capture_output=True, timeout=WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
