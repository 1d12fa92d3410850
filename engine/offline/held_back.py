"""Requests that were not served as they were asked: refused, or their output cut at the model's length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from schedtop.engine.contract.telemetry import FinishReason, Refusal, StepRecord

if TYPE_CHECKING:
    from schedtop.engine.step.stretch import Stretch

_NUMBER = re.compile(r"\d[\d,]*")


class HeldBack:
    """Counts them as records come; a request that was there before the first record is not known here."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, int]] = {}
        self._refused: dict[str, list[Refusal]] = {}
        self._counts: dict[str, int] = {}
        self._num_cut = self._most_tokens = 0

    def add(self, record: StepRecord | Stretch) -> None:
        """Take in the next record, or many steps at once, in which nobody arrives."""
        if isinstance(record, StepRecord):
            self._asked.update((item.number, (item.prompt_tokens, item.max_tokens)) for item in record.arrivals)
            for refusal in record.refusals:
                self._asked.pop(refusal.number, None)
                self._refuse(refusal)
        for finish in record.finishes:
            prompt, most = self._asked.pop(finish.number, (0, 0))
            if finish.reason == FinishReason.LENGTH and finish.output_tokens < most:
                self._num_cut += 1
                self._most_tokens = max(self._most_tokens, prompt + most)

    def _refuse(self, refusal: Refusal) -> None:
        """Reasons that differ only in their numbers are one; the one that needs most stands for them."""
        kind = _NUMBER.sub("N", refusal.reason)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        worst = self._refused.setdefault(kind, [refusal])
        if (refusal.need or 0) > (worst[0].need or 0):
            worst[0] = refusal

    def as_document(self) -> dict[str, Any]:
        """Plain JSON values: `refusals` by reason, and `cut_outputs`."""
        refusals = [
            {
                "count": self._counts[kind],
                "reason": worst.reason,
                "need": worst.need,
                "capacity": worst.capacity,
                "setting": worst.setting or None,
            }
            for kind, (worst,) in self._refused.items()
        ]
        cut = (
            {"count": self._num_cut, "need": self._most_tokens, "setting": "--max-model-len"}
            if self._num_cut
            else None
        )
        return {"refusals": refusals, "cut_outputs": cut}


def held_back_lines(document: dict[str, Any]) -> list[str]:
    """One line for each reason in a report's document: how many, why, and what raises it."""
    lines = []
    for item in document.get("refusals", ()):
        remedy = f"; raise {item['setting']}" if item["setting"] else ""
        most = "" if item["count"] == 1 else ", the largest: "
        lines.append(f"{item['count']:,} refused{most or ': '}{item['reason']}{remedy}")
    if cut := document.get("cut_outputs"):
        word = "output" if cut["count"] == 1 else "outputs"
        lines.append(
            f"{cut['count']:,} {word} cut at the model's length; raise {cut['setting']} (to {cut['need']:,} for all)"
        )
    return lines
