"""A trace file as a source: cut to a window, scaled, and given real prefixes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError, WorkloadSpec
from schedtop.engine.handoff.request import Image
from schedtop.engine.workload.build import RequestBuilder
from schedtop.engine.workload.fields import MAX_TOKENS
from schedtop.engine.workload.order import WINDOW_ROWS, ByArrival
from schedtop.engine.workload.paced import Ask, PacedSource, Tempo
from schedtop.engine.workload.recognise import open_trace
from schedtop.engine.workload.shown import shown
from schedtop.engine.workload.trace import BadRowError, Tally, Trace, TraceError, TraceRow

TEXT_WINDOW_ROWS = 2000
"""As `WINDOW_ROWS`, for rows that hold a text each."""
UNTIMED_RATE = 1.0
"""Requests/s where neither the file nor the operator says."""

SHORT_S = 1.0
LONG_GAP_S = 120.0
"""A trace with less between its first and last arrival, or more between two, may be in another unit of time."""

Own = tuple[float, TraceRow]


def trace_source(
    path: Path, spec: WorkloadSpec, block_size: int, build: RequestBuilder, pooling: bool = False
) -> PacedSource:
    """The requests of a trace file. The first `WINDOW_ROWS` are read and checked now, the rest while it runs.

    Raises `TraceError` for a file or a line that cannot be used, `ConfigError` for a setting that does not suit it.
    """
    tally = Tally(str(path), spec.skip_bad, pooling)
    trace = open_trace(path, tally)
    _check_fit(path, trace, spec)
    width = spec.prefix_block_tokens or trace.block_tokens
    rows = _watched(trace.rows, width, tally) if width and trace.exact_ids else trace.rows
    order = ByArrival(rows, tally, WINDOW_ROWS)
    selected = islice(_timed(order, spec) if trace.timed else _poisson(rows, spec.seed), spec.limit)
    window = TEXT_WINDOW_ROWS if trace.texts else WINDOW_ROWS
    ahead = list(islice(selected, window + 1))
    if not ahead:
        raise TraceError(f"{path}: {_nothing(spec, tally)}")
    tempo, pace = _tempo(path, trace, spec, ahead)
    description = _describe(path, trace, spec, width, block_size) | pace
    if trace.timed:
        description["times"] = trace.times
        if doubt := _doubt(trace.times, len(ahead), pace["span_s"]):
            description["notes"] = [*description.get("notes", ()), doubt]
    if trace.client_waits_s:
        description["client_waits_s"] = trace.client_waits_s
    description["requests"] = len(ahead) if len(ahead) <= window else None
    _add_counts(description, order, tally)
    prefix = trace.format.split()[0].lower()
    asks = (_ask(row, own_s, spec, width, prefix, tally) for own_s, row in chain(ahead, selected))
    return PacedSource(_closing(asks, description, order, tally), tempo, build, description)


def _check_fit(path: Path, trace: Trace, spec: WorkloadSpec) -> None:
    if spec.prefix_block_tokens is not None and trace.block_tokens is None:
        raise ConfigError(f"{shown(spec, 'prefix_block_tokens')}: {path} ({trace.format}) has no prefix ids")
    if spec.image_tokens is not None and not trace.image_column:
        raise ConfigError(
            f"{shown(spec, 'image_tokens')}: {path} ({trace.format}) has no images (column NumImages)"
        )
    if trace.texts and spec.scale != 1.0:
        raise ConfigError(f"{shown(spec, 'scale')}: the prompts of {path} are texts, which have no length to scale")
    if trace.timed:
        return
    for name in ("start_s", "end_s"):
        if getattr(spec, name) is not None:
            raise ConfigError(f"{shown(spec, name)}: {path} ({trace.format}) has no times")


def _watched(rows: Iterator[TraceRow], width: int, tally: Tally) -> Iterator[TraceRow]:
    """The rows; one whose ids are not as many as its prompt has blocks of `width` tokens is a bad row."""
    reason = f"more or fewer prefix ids than the prompt has at {width} tokens an id (--prefix-block-tokens)"
    for row in rows:
        if row.prefix_ids is not None and len(row.prefix_ids) != -(-row.prompt_tokens // width):
            tally.reject(row.line, BadRowError(reason, f"{row.prompt_tokens} tokens, {len(row.prefix_ids)} ids"))
            continue
        yield row


def _timed(order: ByArrival, spec: WorkloadSpec) -> Iterator[Own]:
    """Rows from `start_s` (inclusive, from the trace's first arrival) to `end_s` (exclusive); the first is at 0."""
    start_s, end_s = spec.start_s or 0.0, math.inf if spec.end_s is None else spec.end_s
    first_s = zero_s = None
    for time_s, _, row in order:
        first_s = time_s if first_s is None else first_s
        if time_s - first_s >= end_s:
            return
        if time_s - first_s >= start_s:
            zero_s = time_s if zero_s is None else zero_s
            yield time_s - zero_s, row


def _poisson(rows: Iterator[TraceRow], seed: int) -> Iterator[Own]:
    gaps = np.random.default_rng([seed, 1])
    own_s = 0.0
    for row in rows:
        yield own_s, row
        own_s += float(gaps.exponential())


def _tempo(path: Path, trace: Trace, spec: WorkloadSpec, ahead: list[Own]) -> tuple[Tempo, dict[str, Any]]:
    """How the trace runs, and how that is described.

    A trace's own rate is that of its first `WINDOW_ROWS` requests, which is all of most.
    """
    if not trace.timed:
        rate = trace.rate or UNTIMED_RATE
        own = {"own_rate": rate if math.isfinite(rate) else None, "arrivals": "no times in the file: Poisson"}
        if math.isinf(rate):
            own["arrivals"] = "no times in the file: all at once, as they were sent"
        return Tempo(1.0, spec.time_scale / rate, spec.rate), own
    span_s = ahead[-1][0]
    own_rate = (len(ahead) - 1) / span_s if span_s > 0 else None
    if spec.rate is not None and own_rate is None:
        raise ConfigError(
            f"{shown(spec, 'rate')}: all requests of {path} arrive at one moment, so they have no rate"
        )
    return Tempo(own_rate, spec.time_scale, spec.rate), {"own_rate": own_rate, "span_s": span_s}


def _doubt(times: str, num: int, span_s: float) -> str | None:
    """Why the unit of time may be another one than the format's."""
    if times == "milliseconds" and num > 1 and span_s < SHORT_S:
        return f"all arrivals lie within {span_s:.3g} s: if the file's times are seconds, give --time-scale 1000"
    if times == "seconds" and num > 1 and span_s / (num - 1) > LONG_GAP_S:
        gap_s = span_s / (num - 1)
        return (
            f"a request comes every {gap_s:,.0f} s: if the file's times are milliseconds, give --time-scale 0.001"
        )
    return None


def _describe(path: Path, trace: Trace, spec: WorkloadSpec, width: int | None, block_size: int) -> dict[str, Any]:
    given = {
        field.name: getattr(spec, field.name)
        for field in msgspec.structs.fields(spec)
        if getattr(spec, field.name) != field.default
    }
    notes = list(trace.notes)
    if trace.image_column and spec.image_tokens is None:
        notes.append(f"not used: {trace.image_column} (--image-tokens N says how many tokens an image has)")
    if width is not None and width % block_size:
        notes.append(f"{width} tokens an id is not a multiple of block size {block_size}: fewer hits than by ids")
    return {**given, "source": path.name, "seed": spec.seed, "format": trace.format} | {
        key: value for key, value in {"prefix_block_tokens": width, "notes": notes}.items() if value
    }


def _add_counts(description: dict[str, Any], order: ByArrival, tally: Tally) -> None:
    description.update(tally.counts())
    if tally.first_lines:
        description["first_lines"] = dict(tally.first_lines)
    if order.inversions:
        description |= {"inversions": order.inversions, "rows": order.num_rows}


def _closing(asks: Iterator[Ask], description: dict[str, Any], order: ByArrival, tally: Tally) -> Iterator[Ask]:
    yield from asks
    _add_counts(description, order, tally)


def _nothing(spec: WorkloadSpec, tally: Tally) -> str:
    passed = "; ".join(f"{n:,} × {why}" for reasons in tally.counts().values() for why, n in reasons.items())
    window = "" if spec.start_s is None and spec.end_s is None else " in the window asked for"
    return f"no request{window}" + (f" (passed over: {passed})" if passed else "")


def _ask(row: TraceRow, own_s: float, spec: WorkloadSpec, width: int | None, prefix: str, tally: Tally) -> Ask:
    scale = spec.scale
    wanted = round(row.output_tokens * scale)
    output = _capped(wanted, spec.max_output_tokens)
    if output < wanted:
        tally.notice(f"output cut to {shown(spec, 'max_output_tokens')}", row.line)
    prompt, shared_width = row.prompt_tokens, 0
    if row.prefix_ids is not None and width:
        # Whole ids and the part of the last one scale apart, so that what was shared stays shared.
        full, part = divmod(prompt, width)
        shared_width = max(round(width * scale), 1)
        prompt = full * shared_width + min(math.ceil(part * scale), shared_width)
    else:
        prompt = round(prompt * scale)
    images = _images(row, spec, f"{prefix}-{row.line}")
    prompt += sum(image.length for image in images)
    images = images or row.placed_images
    if spec.max_prompt_tokens is not None and prompt > spec.max_prompt_tokens:
        tally.notice(f"prompt cut to {shown(spec, 'max_prompt_tokens')}", row.line)
    return Ask(
        own_s,
        row.line | (row.place or 0) << 32,
        row.id or f"{prefix}-{row.line}" + ("" if row.place is None else f".{row.place + 1}"),
        _capped(prompt, spec.max_prompt_tokens),
        output,
        row.priority,
        row.prefix_ids if shared_width else None,
        shared_width,
        row.text,
        row.adapter,
        images,
        row.cache_salt,
        row.skip_reading_prefix_cache,
        row.parent,
    )


def _images(row: TraceRow, spec: WorkloadSpec, name: str) -> tuple[Image, ...]:
    """A row's images, before its text; no two are the same."""
    width = spec.image_tokens
    if width is None or not row.images:
        return ()
    return tuple(Image(place * width, width, f"{name}#{place}") for place in range(row.images))


def _capped(tokens: int, cap: int | None) -> int:
    return min(max(tokens, 1), cap or MAX_TOKENS, MAX_TOKENS)
