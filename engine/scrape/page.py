"""One metrics page as figures per engine."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from schedtop.engine.scrape.names import COUNTERS, ENGINE_LABELS, GAUGES, HISTOGRAMS, MODEL_LABEL

MAX_ENGINES = 256
"""On one page; a label with arbitrary values would grow without end."""


class PageError(ValueError):
    """A page without figures of an inference server; the text is one line for the operator."""


class EngineKey(NamedTuple):
    """Which engine of a page."""

    model: str
    engine: str


Buckets = tuple[tuple[float, float], ...]
"""Upper bounds (the last is infinite) and how many values are at or below each, since the server's start."""


class PageReading(msgspec.Struct, frozen=True):
    """A page's figures of one engine; missing figures are absent. `kv_usage` is a share."""

    gauges: dict[str, float]
    counters: dict[str, float]
    histograms: dict[str, list[tuple[float, float]]]


def read_page(text: str) -> dict[EngineKey, PageReading]:
    """Figures of every engine of a page. Raises `PageError`."""
    found = _samples(text)
    wanted = [*GAUGES.values(), *COUNTERS.values(), *HISTOGRAMS.values()]
    if not any(name in found for names in wanted for name in names):
        raise PageError("the page has no figure of vLLM or SGLang")
    engines: dict[EngineKey, PageReading] = {}
    for table, kind in ((GAUGES, "gauges"), (COUNTERS, "counters"), (HISTOGRAMS, "histograms")):
        for figure, names in table.items():
            name = next((name for name in names if name in found), None)
            for key, values in found[name].items() if name is not None else ():
                reading = engines.setdefault(key, PageReading({}, {}, {}))
                getattr(reading, kind)[figure] = values if kind == "histograms" else values[0][1]
    if len(engines) > MAX_ENGINES:
        raise PageError(f"the page describes {len(engines)} engines; at most {MAX_ENGINES} are taken")
    return engines


def _samples(text: str) -> dict[str, dict[EngineKey, list[tuple[float, float]]]]:
    """By name and engine: histograms as buckets, all else as one pair; other labels are summed over."""
    wanted = {name for table in (GAUGES, COUNTERS) for names in table.values() for name in names}
    buckets = {f"{name}_bucket": name for names in HISTOGRAMS.values() for name in names}
    sums: dict[tuple[str, EngineKey], dict[float, float]] = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name if sample.name in wanted else buckets.get(sample.name)
                if name is None or not math.isfinite(sample.value):
                    continue
                labels = sample.labels
                engine = next((labels[label] for label in ENGINE_LABELS if label in labels), "0")
                bound = float(labels["le"]) if sample.name in buckets else 0.0
                sums[name, EngineKey(labels.get(MODEL_LABEL, ""), engine)][bound] += sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise PageError(f"not a metrics page: {' '.join(str(error).split())[:120]}") from None
    found: dict[str, dict[EngineKey, list[tuple[float, float]]]] = defaultdict(dict)
    for (name, key), values in sums.items():
        found[name][key] = sorted(values.items())
    return dict(found)
