"""Outputs as text: detokenised as they come, cut at stop strings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from schedtop.engine.handoff.plan import IntArray, StepResult
from schedtop.engine.handoff.request import Request
from schedtop.engine.handoff.stop_strings import StopStrings
from tokenizers import Tokenizer as TokenTable
from tokenizers.decoders import DecodeStream


class OutputText:
    """The text of one request. Text that may be the beginning of a stop string is held back."""

    def __init__(self, table: TokenTable, stop: tuple[str, ...]) -> None:
        self._table = table
        self._stops = StopStrings(stop)
        self._stream = DecodeStream(skip_special_tokens=True)

    @property
    def stopped(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.stopped

    def push(self, token_id: int) -> str:
        """The text that became certain with one more token; sets `stopped` when a stop string is complete."""
        return self._stops.push(self._stream.step(self._table, token_id) or "")

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        return self._stops.flush()


class Texts:
    """The texts of the requests in the batch, by request number."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._open: dict[int, OutputText] = {}

    def start(self, request: Request) -> None:
        """Take a request in; a resumed one has already given the text of its outputs so far."""
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
