"""Re-runs of a recording for its replay, each in its own process: keys stay prompt, and it can be ended.

`python -m schedtop.console.cli.rerun_process` is that process: a question in on stdin, progress and answer on stdout.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from schedtop.console.cli.pipe_messages import read_message, write_message
from schedtop.console.past.ladder import Ladder
from schedtop.console.replay.rerun.runs import Answer, Told
from schedtop.engine.contract.telemetry import Snapshot

if TYPE_CHECKING:
    from schedtop.engine.whatif.rerun import Rerun, RerunQuestion

TOLD_EVERY_S = 0.1


class RerunError(Exception):
    """No outcome; the text says why."""


class RerunProcess:
    """Iterate to follow it; the last item is the outcome. Raises `RerunError`."""

    def __init__(self, question: RerunQuestion) -> None:
        self._question = question
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "schedtop.console.cli.rerun_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __iter__(self) -> Iterator[Told]:
        from schedtop.engine.whatif.rerun import Rerun

        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdin, process.stdout:
                write_message(process.stdin, msgspec.msgpack.encode(self._question))
                while (body := read_message(process.stdout)) is not None:
                    message = msgspec.msgpack.decode(
                        body, type=tuple[str, float, str | None, Rerun | None, list[bytes]]
                    )
                    what, share, failed, found, courses = message
                    if failed is not None:
                        raise RerunError(failed)
                    if found is not None:
                        yield Answer(found, *map(Ladder.unpacked, courses))
                        return
                    yield what, share
        except OSError:
            pass
        finally:
            self.cancel()
            process.wait()
        raise RerunError("the process that runs it has ended")

    def cancel(self) -> None:
        """End the process."""
        self._process.kill()


def beginner(path: str, slo: str | None, device: str | None) -> Callable[..., RerunProcess]:
    """The starting point for re-runs of the recording at `path`."""

    def begin(changes: Mapping[str, Any], index: int | None, snapshot: Snapshot | None) -> RerunProcess:
        from schedtop.engine.whatif.rerun import RerunQuestion

        return RerunProcess(
            RerunQuestion(path=path, changes=dict(changes), index=index, snapshot=snapshot, slo=slo, device=device)
        )

    return begin


def main() -> None:
    """Answer the question on stdin."""
    from schedtop.engine.recording.frames import RecordingError
    from schedtop.engine.whatif.rerun import RerunQuestion, rerun

    body = read_message(sys.stdin.buffer)
    if body is None:
        return
    next_s = 0.0

    def tell(
        what: str,
        share: float,
        failed: str | None = None,
        found: Rerun | None = None,
        courses: Sequence[bytes] = (),
    ) -> None:
        write_message(sys.stdout.buffer, msgspec.msgpack.encode((what, share, failed, found, courses)))

    def on_progress(what: str, share: float) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + TOLD_EVERY_S
            tell(what, share)

    ladders = Ladder(), Ladder(), Ladder()
    try:
        found = rerun(msgspec.msgpack.decode(body, type=RerunQuestion), on_progress, ladders)
    except Exception as error:  # any error explains why there is no outcome
        known = isinstance(error, ValueError | OSError | RecordingError) and str(error)
        tell("", 1.0, str(error) if known else f"{type(error).__name__}: {error}".rstrip(": "))
    else:
        tell("", 1.0, None, found, [ladder.packed() for ladder in ladders])


if __name__ == "__main__":
    main()
