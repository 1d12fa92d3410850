"""Outputs as text: detokenised as they come, cut at stop strings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from schedtop.engine.handoff.plan import IntArray, StepResult
from schedtop.engine.handoff.request import Request
from tokenizers import Tokenizer as TokenTable
from tokenizers.decoders import DecodeStream


class OutputText:
    """The text of one request. Text that may be the beginning of a stop string is held back."""

    def __init__(self, table: TokenTable, stop: tuple[str, ...]) -> None:
        self._table = table
        self._stop = stop
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The text that became certain with one more token; sets `stopped` when a stop string is complete."""
        piece = self._stream.step(self._table, token_id) or ""
        if not self._stop or not piece:
            return piece
        text = self._held + piece
        ends = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, short of all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


class Texts:
    """The texts of the requests in the batch, by request number."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._open: dict[int, OutputText] = {}

    def start(self, request: Request) -> None:
        """Take a request in; one that returns has told the text of its outputs so far."""
        stop = request.sampling.stop if request.sampling is not None else ()
        text = self._open[request.number] = OutputText(self._table, stop)
        for token_id in request.output_token_ids:
            text.push(token_id)

    def drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._open.pop(number, None)

    def extend(self, numbers: IntArray, result: StepResult) -> None:
        """Fill in `texts` and `stopped`; outputs after a stop string do not count."""
        for row in np.flatnonzero(result.num_sampled).tolist():
            text = self._open[int(numbers[row])]
            pieces = []
            for place, token_id in enumerate(result.sampled[row, : result.num_sampled[row]].tolist()):
                pieces.append(text.push(token_id))
                if text.stopped:
                    result.num_sampled[row] = place + 1
                    result.stopped.append(int(numbers[row]))
                    break
            delta = "".join(pieces)
            if delta:
                result.texts[int(numbers[row])] = delta
