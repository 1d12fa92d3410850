"""The page as text. Prometheus's own writer checks every name of every line again, which costs many times as much."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def page_text(families: Iterable[Metric]) -> bytes:
    """The families in Prometheus's text format; times of creation follow as families of their own."""
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(_head(name, family.documentation, family.type))
        created: list[str] = []
        for sample in family.samples:
            line = f"{sample.name}{_labels(tuple(sample.labels.items()))} {_number(sample.value)}\n"
            (created if sample.name.endswith("_created") else lines).append(line)
        if created:
            lines += [_head(f"{family.name}_created", family.documentation, "gauge"), *created]
    return "".join(lines).encode()


@lru_cache(maxsize=1024)
def _head(name: str, text: str, kind: str) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


@lru_cache(maxsize=8192)
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(labels)]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return f"{value}.0" if type(value) is int and -(10**6) < value < 10**6 else _float_text(float(value))


@lru_cache(maxsize=4096)
def _float_text(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
