"""Cuts output text at stop strings as it streams."""

from __future__ import annotations


class StopStrings:
    """Holds back text that may begin a stop string; `stopped` is the completed one."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.stopped: str | None = None

    def push(self, piece: str) -> str:
        """The text that one more piece makes certain."""
        if not self._stop or not piece:
            return piece
        text = self._held + piece
        ends = [(place, stop) for stop in self._stop if (place := text.find(stop)) >= 0]
        if ends:
            place, self.stopped = min(ends)
            self._held = ""
            return text[:place]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, once nothing more will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, short of all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
