"""The benchmark against published measurements holds its bound."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "devices.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_devices", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_median_error_of_recent_engines_is_within_the_bound(benchmark: ModuleType) -> None:
    groups = benchmark.summary(benchmark.errors(benchmark.read_points().points))
    recent = groups["vLLM 0.20 and later"]
    assert len(recent) >= 12
    assert median(recent) <= benchmark.BOUND
    assert max(groups["all"]) < 0.5


def test_every_point_names_a_source_and_is_printed(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    data = benchmark.read_points()
    assert {point.source for point in data.points} == set(data.sources)
    assert benchmark.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line[:2].strip() in data.sources for line in lines) == len(data.points)
