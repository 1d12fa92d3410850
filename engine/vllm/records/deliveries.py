"""What a step delivered: outputs, gaps between them, first tokens and ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.telemetry import FinishReason
from schedtop.engine.vllm.records.batch import Ints
from schedtop.engine.vllm.records.requests import OUTPUTS, ServerRequest, ServerRequests

Seconds = npt.NDArray[np.float64]


def deliver(
    lives: ServerRequests, outputs: Any, now_s: float
) -> tuple[Ints, Seconds, list[tuple[int, float]], list[tuple[ServerRequest, str]]]:
    """Outputs by slot, delivery gaps by slot (NaN: none), first tokens, and who ended for what reason."""
    emitted = np.zeros(lives.columns.shape[1], dtype=np.int64)
    gaps_s = np.full(len(emitted), np.nan)
    groups = outputs.values() if isinstance(outputs, dict) else [outputs]
    live = lives.by_id
    items = [item for group in groups for item in getattr(group, "outputs", ()) if item.request_id in live]
    ended = [
        (live[item.request_id], _reason(item.finish_reason)) for item in items if item.finish_reason is not None
    ]
    items = [item for item in items if item.new_token_ids]
    if not items:
        return emitted, gaps_s, [], ended
    slots = lives.slots([item.request_id for item in items])
    emitted[slots] = [len(item.new_token_ids) for item in items]
    gaps = now_s - lives.last_s[slots]
    first = np.isnan(gaps)
    firsts = []
    for slot in slots[first].tolist():
        life = lives.by_slot[slot]
        life.first_token_s = now_s
        firsts.append((life.number, now_s - life.arrival.arrival_s))
    later, gaps = slots[~first], gaps[~first]
    lives.gaps.add(later, gaps)
    gaps_s[later] = gaps
    lives.last_s[slots] = now_s
    lives.columns[OUTPUTS] += emitted
    return emitted, gaps_s, firsts, ended


def _reason(reason: Any) -> str:
    """vLLM's finish reason by our name."""
    name = str(getattr(reason, "name", reason)).lower()
    return name if name in set(FinishReason) else FinishReason.ERROR.value


def outside_reason(status: str) -> FinishReason:
    """Why a request was ended from outside, by the name of the status it was given."""
    for part, reason in (
        ("ABORT", FinishReason.ABORT),
        ("ERROR", FinishReason.ERROR),
        ("LENGTH", FinishReason.LENGTH),
    ):
        if part in status:
            return reason
    return FinishReason.STOP
