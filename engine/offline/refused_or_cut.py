"""Requests not served as asked: refused, or cut off at the model's length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from schedtop.engine.contract.telemetry import FinishReason, Refusal, StepRecord

if TYPE_CHECKING:
    from schedtop.engine.step.stretch.stretch import Requests

_NUMBER = re.compile(r"\d[\d,]*")


class HeldBack:
    """Counts them record by record; requests from before the first record are unknown here.

    `own_model_len`: the model's own limit, which no setting can raise.
    """

    def __init__(self, own_model_len: int | None = None) -> None:
        self._own_model_len = own_model_len
        self._asked: dict[int, tuple[int, int]] = {}
        self._refused: dict[str, list[Refusal]] = {}
        self._counts: dict[str, int] = {}
        self._num_cut = self._most_tokens = self._cut_at_tokens = 0

    def add(self, record: StepRecord | Requests) -> None:
        """Take in the next record."""
        self._asked.update((item.number, (item.prompt_tokens, item.max_tokens)) for item in record.arrivals)
        for refusal in record.refusals:
            self._asked.pop(refusal.number, None)
            self._refuse(refusal)
        for finish in record.finishes:
            prompt, most = self._asked.pop(finish.number, (0, 0))
            if finish.reason == FinishReason.LENGTH and finish.output_tokens < most:
                self._num_cut += 1
                self._most_tokens = max(self._most_tokens, prompt + most)
                self._cut_at_tokens = max(self._cut_at_tokens, prompt + finish.output_tokens)

    def _refuse(self, refusal: Refusal) -> None:
        """Reasons that differ only in their numbers are grouped; the one with the largest need represents them."""
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
        return {"refusals": refusals, "cut_outputs": self._cut() if self._num_cut else None}

    def _cut(self) -> dict[str, Any]:
        own = self._own_model_len
        helps = own is None or self._cut_at_tokens < own
        return {
            "count": self._num_cut,
            "need": self._most_tokens,
            "own_model_len": own,
            "setting": "--max-model-len" if helps else None,
        }


def held_back_lines(document: dict[str, Any]) -> list[str]:
    """One line for each reason in a report's document: how many, why, and what raises the limit."""
    lines = []
    for item in document.get("refusals", ()):
        remedy = f"; raise {item['setting']}" if item["setting"] else ""
        most = "" if item["count"] == 1 else ", the largest: "
        lines.append(f"{item['count']:,} refused{most or ': '}{item['reason']}{remedy}")
    if cut := document.get("cut_outputs"):
        word = "output" if cut["count"] == 1 else "outputs"
        lines.append(f"{cut['count']:,} {word} cut at {_remedy(cut)}")
    return lines


def _remedy(cut: dict[str, Any]) -> str:
    """Where outputs were cut, and what raises the limit."""
    own = cut.get("own_model_len")
    if not cut["setting"]:
        return f"the model's own length, {own:,}: no setting raises it"
    to = f"{cut['need']:,} for all" if own is None or cut["need"] <= own else f"{own:,}, the model's own"
    return f"the model's length; raise {cut['setting']} (to {to})"
