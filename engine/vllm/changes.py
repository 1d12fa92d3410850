"""Which knob changes a vLLM server accepts, and their effects, reported before they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedtop.engine.contract.knobs import BY_NAME, KnobError, check_value


def check_change(config: Mapping[str, Any], now: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as typed knob values; raises `KnobError` if one, or their combination, cannot be used."""
    if not values:
        raise KnobError("no knob was named")
    typed = {}
    for name, value in values.items():
        knob = BY_NAME.get(name)
        if knob is not None and name not in now:
            way = "vLLM has no flag for it, either"
            if name == "rate":
                way = "a server takes what its clients send"
            elif knob.vllm_option:
                way = f"restart vLLM with {knob.vllm_option}"
            raise KnobError(f"{name} cannot be changed on this server: {way}")
        typed[name] = check_value(name, value, {name: config.get(name) for name in _CEILINGS})
    after = {**now, **typed}
    rows, slots = after["max_num_batched_tokens"], config["draft_slots"]
    if rows <= slots:
        raise KnobError(f"max_num_batched_tokens={rows} leaves no row beside {slots} draft slots")
    budget = _budget(typed, now)
    if budget > rows:
        raise KnobError(f"max_num_scheduled_tokens={budget}: must be at most {rows} (max_num_batched_tokens)")
    if (
        not config["enable_chunked_prefill"]
        and {"max_num_batched_tokens", "max_num_scheduled_tokens"} & typed.keys()
    ):
        raise KnobError("chunked prefill is off: a lower budget could strand a prompt for ever")
    return typed


_CEILINGS = ("max_batched_tokens_ceiling", "max_seqs_ceiling")


def _budget(typed: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    after = {**now, **with_consequences(dict(typed))}
    return int(after.get("max_num_scheduled_tokens") or after["max_num_batched_tokens"])


def with_consequences(typed: dict[str, Any]) -> dict[str, Any]:
    """`max_num_batched_tokens` sets both budgets unless the other is given as well; it is applied first."""
    if "max_num_batched_tokens" in typed:
        typed = {
            "max_num_batched_tokens": typed["max_num_batched_tokens"],
            "max_num_scheduled_tokens": None,
            **typed,
        }
    return typed


def foresee(typed: Mapping[str, Any], running: int, decoding: int, num_free: int, num_blocks: int) -> list[str]:
    """The effect of a checked change on running requests, in an operator's words."""
    lines = []
    cap = typed.get("max_num_seqs")
    if cap is not None and cap < running:
        lines.append(f"{running} running, cap {cap}: {running - cap} must finish first")
    budgets = [typed[name] for name in ("max_num_batched_tokens", "max_num_scheduled_tokens") if typed.get(name)]
    if budgets and decoding > min(budgets):
        lines.append(f"{decoding} decoding, budget {min(budgets)}: {decoding - min(budgets)} get no token")
    if "watermark" in typed:
        blocks = int(typed["watermark"] * (num_blocks + 1))
        if running and blocks > num_free:
            short = blocks - num_free
            lines.append(
                f"watermark {blocks} blocks, {num_free} free: nobody is admitted until {short} more are free"
            )
    return lines
