"""A recording that the console starts and stops, written by a separate process.

`python -m schedtop.console.cli.record_process ADDRESS FILE [TOKEN_FILE]` is that process. It ends with its stdin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from schedtop.console.cli.errors import exit_code_of, say

END_WITHIN_S = 10.0


class RecordProcess:
    """Records the engine at `address`, one file at a time: its last minutes and what follows."""

    def __init__(self, address: str, token_file: str | None = None) -> None:
        self._arguments = [address, token_file or ""]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, path: Path) -> None:
        """Begin a new file. Raises `OSError` if no process can be started."""
        address, token_file = self._arguments
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "schedtop.console.cli.record_process", address, str(path), token_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def ended(self) -> str | None:
        """Why the recording ended by itself, in one line; None while it continues."""
        if self._process is None or self._process.poll() is None:
            return None
        return self.stop()

    def stop(self) -> str:
        """End the recording once all is written; what became of it, in one line."""
        process, self._process = self._process, None
        if process is None:
            return "nothing is being recorded"
        try:
            words = process.communicate(timeout=END_WITHIN_S)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"the recording did not end within {END_WITHIN_S:g} s: its last second is missing"
        said = [line for line in words.splitlines() if line.strip()]
        return said[-1].removeprefix("schedtop: ") if said else "the recording ended without a word"

    def close(self) -> str | None:
        """End a recording that still continues; what became of it."""
        return None if self._process is None else self.stop()


def main(address: str, path: str, token_file: str) -> int:
    """Record until stdin or the engine ends."""
    from schedtop.console.cli.record import LinkRecorder  # late: the console starts without
    from schedtop.engine.channel.client import ChannelClient

    with ChannelClient.connect(address, token_file=token_file or None, read_only=True, recent=True) as link:
        recorder = LinkRecorder(link, path)

        def finish_with_stdin() -> None:
            with suppress(OSError):
                while os.read(
                    0, 1 << 12
                ):  # not sys.stdin: a read that holds its lock breaks the interpreter's exit
                    pass
            recorder.finish()

        threading.Thread(target=finish_with_stdin, daemon=True).start()
        try:
            recorder.run(None)
        finally:
            recorder.close()
    say(recorder.summary())
    return 0


if __name__ == "__main__":
    from schedtop.engine.serving.quiet_exit import leave

    try:
        code = main(*sys.argv[1:4])
    except Exception as error:
        code = exit_code_of(error)
    leave(code)
