"""What clients feel, beside the scheduler's latencies, where a front end is simulated or known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import PlayedLink
from schedtop.console.app import ConsoleApp
from schedtop.console.life.reader import read_life
from schedtop.console.options import ConsoleOptions
from schedtop.console.past.client import KeptClientLatencies, client_latencies
from schedtop.console.past.history import History
from schedtop.console.status import brief, facts, page
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.contract.telemetry import Outgoing
from schedtop.engine.handoff.request import Request
from schedtop.engine.offline.report import Report
from schedtop.engine.step.engine import Engine
from seat import COMPACT, WIDE, Clock

SIMULATED, UNKNOWN = "sim:llama-3.1-8b@h100", "sim:smollm2-135m@cpu"


def served(device: str, until_s: float) -> tuple[Engine, list[Outgoing], History, Report]:
    """An engine under load up to a moment, what it told, and who listened."""
    engine = build_engine(EngineConfig(device=device, workload=WorkloadSpec(source="mixed", rate=12.0)))
    messages: list[Outgoing] = [engine.header, engine.snapshot()]
    history, report = History(), Report.of(engine.header, None)
    while engine.clock_s < until_s:
        record = engine.step()
        if record is not None:
            report.add(record)
            messages.append(record)
    for message in messages:
        history.apply(message)
    return engine, messages, history, report


_, _, HISTORY, _ = served(SIMULATED, 12.0)


def test_they_are_those_of_the_report() -> None:
    _, _, history, report = served(SIMULATED, 12.0)
    felt, wanted = client_latencies(history, history.now(), 60.0), report.as_dict()
    assert {kind: whole.document() for kind, whole in felt.items()} == {
        kind: wanted[f"client_{kind}_s"] for kind in ("ttft", "e2e")
    }
    assert felt["e2e"].num_open > 0 and felt["ttft"].n > 100


def test_what_a_request_was_told_to_have_waited_counts() -> None:
    engine = build_engine(EngineConfig(device=UNKNOWN, workload=None))
    history = History()
    history.apply(engine.header)
    history.apply(engine.snapshot())
    for name, wait_s in (("a", 3.0), ("b", None)):
        engine.submit(Request(name, np.arange(20, dtype=np.int32), 5, client_wait_s=wait_s))
    while engine.num_unfinished:
        record = engine.step()
        assert record is not None
        history.apply(record)
        felt = client_latencies(history, history.now(), 60.0)
        assert felt["e2e"].n + felt["e2e"].num_open == 1
    _, finish = history.finished[0]
    assert finish.ttft_s is not None and finish.e2e_s is not None
    assert felt["ttft"].values.tolist() == [finish.ttft_s + 3.0] and felt["e2e"].values == [finish.e2e_s + 3.0]


def test_without_a_known_front_end_there_is_nothing() -> None:
    _, _, history, _ = served(UNKNOWN, 6.0)
    assert client_latencies(history, history.now(), 60.0) == {}
    assert not any("client" in line for line in page(facts(history, [], {})))


def test_status_has_them_after_the_schedulers() -> None:
    _, _, history, report = served(SIMULATED, 12.0)
    found = facts(history, [], {})
    assert found["latency"]["client_ttft"]["p50"] == pytest.approx(report.as_dict()["client_ttft_s"]["p50"])
    titles = [line.partition(":")[0] for line in page(found)]
    assert [title for title in titles if title.isupper() or "client" in title] == [
        *("KV", "TTFT", "ITL", "client TTFT", "client E2E")
    ]
    assert ", client TTFT p50 " in brief(found)


def test_a_life_has_them() -> None:
    engine, _, history, _ = served(SIMULATED, 12.0)
    front_end_s = engine.header.settings["front_end_s"]
    for number in list(history.finished)[-20:]:
        life = read_life(history, history.now(), number)
        assert life is not None and life.ttft_s is not None
        assert life.client_ttft_s is not None and life.client_e2e_s is not None and life.finish is not None
        assert life.client_ttft_s > life.ttft_s + front_end_s
        assert life.finish.e2e_s is not None and life.client_e2e_s > life.finish.e2e_s + front_end_s


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_the_panel_shows_them(size: tuple[int, int]) -> None:
    _, messages, _, _ = served(SIMULATED, 12.0)
    link = PlayedLink(messages)
    app = ConsoleApp(link, ConsoleOptions(theme="dark"), now=Clock())
    async with app.run_test(size=size) as pilot:
        while link.messages:
            await pilot.pause(0.01)
        app.paint()
        await pilot.pause(0.1)
        screen = "\n".join("".join(segment.text for segment in strip) for strip in app.screen_strips())
    words = ("client TTFT  p50 ", "client E2E   p50 ") if size == WIDE else ("  client ",)
    assert all(word in screen for word in words)


def test_seconds_that_are_over_are_kept_as_they_were() -> None:
    _, messages, _, _ = served(SIMULATED, 12.0)
    history, kept = History(), KeptClientLatencies()
    moments = []
    for index, message in enumerate(messages):
        history.apply(message)
        if index > 1 and index % 7 == 0:
            moments.append(history.now())
            asked = [moments[-1], moments[len(moments) // 2]]
            for moment, window_s in zip(asked, (6.0, 3.0 if index % 2 else 60.0), strict=True):
                found, wanted = (felt(history, moment, window_s) for felt in (kept.window, client_latencies))
                assert {kind: whole.document() for kind, whole in found.items()} == {
                    kind: whole.document() for kind, whole in wanted.items()
                }


@given(shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), window_s=st.sampled_from([2.0, 10.0, 60.0]))
def test_looking_here_and_there_reads_the_same_as_looking_once(shares: list[float], window_s: float) -> None:
    """Forwards, backwards and over seconds: what was read before neither lacks nor counts twice."""
    again, history = KeptClientLatencies(), HISTORY
    for share in shares:
        moment = history.at(history.records[round(share * (len(history.records) - 1))].seq)
        assert moment is not None
        found, wanted = again.window(history, moment, window_s), client_latencies(history, moment, window_s)
        assert {kind: whole.document() for kind, whole in found.items()} == {
            kind: whole.document() for kind, whole in wanted.items()
        }
