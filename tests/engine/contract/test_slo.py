"""SLO texts, and which requests meet them."""

from __future__ import annotations

import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.telemetry import Finish


def finish(**figures: float | None) -> Finish:
    return Finish(number=0, reason="length", output_tokens=3, **figures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=1s,itl=50ms", Slo(ttft_s=1.0, itl_s=0.05)),
        (" tpot = 1.5 ms , e2e=2s ", Slo(tpot_s=0.0015, e2e_s=2.0)),
        ("itl=.5s", Slo(itl_s=0.5)),
        ("ttft=800us", Slo(ttft_s=0.0008)),
    ],
)
def test_texts(text: str, slo: Slo) -> None:
    parsed = parse_slo(text)
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert getattr(parsed, name) == pytest.approx(getattr(slo, name))
    assert parse_slo(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "SLO '': write NAME=TIME, NAME one of ttft, itl, tpot, e2e"),
        ("ttft=1s,", "SLO '': write NAME=TIME"),
        ("latency=1s", "SLO 'latency=1s': write NAME=TIME"),
        ("ttft", "SLO 'ttft': write a time above 0 with its unit (us, ms, s), such as 50ms"),
        ("ttft=1", "SLO 'ttft=1': write a time"),
        ("ttft=0s", "SLO 'ttft=0s': write a time"),
        ("ttft=-1s", "SLO 'ttft=-1s': write a time"),
        ("ttft=inf s", "SLO 'ttft=inf s': write a time"),
        ("ttft=1h", "SLO 'ttft=1h': write a time"),
        ("ttft=" + "9" * 400 + "s", "write a time"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_slo(text)
    assert message in str(caught.value)


def test_every_bound_must_be_kept() -> None:
    slo = parse_slo("ttft=1s,itl=50ms,tpot=40ms,e2e=9s")
    kept = {"ttft_s": 1.0, "itl_p95_s": 0.05, "tpot_s": 0.04, "e2e_s": 9.0}
    assert slo.met_by(finish(**kept))
    for name, value in kept.items():
        assert not slo.met_by(finish(**(kept | {name: value * 1.01})))


def test_a_request_of_one_output_has_no_gap_to_judge() -> None:
    slo = parse_slo("ttft=1s,itl=50ms,tpot=40ms")
    assert slo.met_by(finish(ttft_s=0.5))
    assert not slo.met_by(finish())
