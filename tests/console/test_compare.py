"""Before and after a change: what may be called better."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from schedtop.console.knobs.comparison import BeforeAfter, FigurePair, changes, compare
from schedtop.console.past.history import History
from schedtop.engine.handoff.request import Request
from schedtop.engine.step.engine import Engine
from seat import COMPACT, WIDE, seated

from tests.engine.harness import Script, ask, engine_of

ROOMY = {"num_blocks": 4000, "max_model_len": 4000, "max_num_seqs": 40}
SIDE_STEPS = 40
"""Of half a second: long enough for every figure."""


def changed(engine: Engine, history: History | None = None, **knobs: int) -> tuple[BeforeAfter, History]:
    history = history or History()
    history.apply(engine.header)
    history.apply(engine.snapshot())
    for side in ({}, knobs):
        assert not side or engine.set_knobs(side, by="key").ok
        for _ in range(SIDE_STEPS):
            record = engine.step()
            assert record is not None
            history.apply(record)
    found = changes(history)
    return compare(history, found[0], found), history


def verdicts(found: BeforeAfter, kind: str) -> set[str]:
    return {figure.verdict for figure in found.figures if figure.name.startswith(kind)}


def decoding(count: int) -> Engine:
    return engine_of(*(ask(f"{i:03}", 4, 3000) for i in range(count)), **ROOMY)


@pytest.mark.parametrize(
    ("budget", "said"), [(4, "60% starve"), (9, "10% starve"), (10, "no change"), (2048, "no change")]
)
def test_itl_of_those_that_are_served_does_not_speak_for_those_that_starve(budget: int, said: str) -> None:
    assert verdicts(changed(decoding(10), max_num_scheduled_tokens=budget)[0], "ITL") == {said}


def test_ttft_of_those_that_came_does_not_speak_for_those_that_wait() -> None:
    """The cap holds the queue: hardly a TTFT describes it."""
    arriving = [ask(f"{i:03}", 4, 4, arrival_s=i * 0.7) for i in range(60)]
    source = Script([ask("zzz", 4, 3000), *arriving])
    found, history = changed(engine_of(source=source, **ROOMY), max_num_seqs=1)
    assert history.latest is not None and history.latest.oldest_wait_s is not None
    assert verdicts(found, "TTFT") == {"worse"}
    p95 = next(figure for figure in found.figures if figure.name == "TTFT p95 ms")
    assert p95.bounds[1] and p95.after is not None and p95.after > 1000


def test_who_waited_in_the_run_before_a_restart_does_not_wait_in_the_next() -> None:
    def arriving() -> list[Request]:
        return [ask(f"{i:03}", 4, 4, arrival_s=i * 0.7) for i in range(60)]

    _, history = changed(engine_of(source=Script([ask("zzz", 4, 3000), *arriving()]), **ROOMY), max_num_seqs=1)
    runs = [engine_of(source=Script(arriving()), **ROOMY) for _ in range(2)]
    runs[0].header = replace(runs[0].header, started_at=runs[0].header.started_at + 60)
    again, fresh = (changed(run, past, max_num_seqs=39)[0] for run, past in zip(runs, (history, None), strict=True))
    assert again.figures == fresh.figures


def test_a_side_of_which_too_many_are_open_is_not_judged() -> None:
    """Waits that are short yet may still grow to anything."""
    figure = FigurePair("TTFT p50 ms", 10.0, 5.0, 99, 99, True, bounds=(False, True), after_most=float("inf"))
    assert figure.verdict == "cannot tell"
    surely = FigurePair("TTFT p50 ms", 10.0, 5.0, 99, 99, True, bounds=(False, True), after_most=6.0)
    assert surely.verdict == "better"


def test_a_queue_that_moves_is_no_reason_against_praise() -> None:
    arriving = [ask(f"{i:03}", 4, 4, arrival_s=i * 0.7) for i in range(60)]
    found, _ = changed(engine_of(source=Script(arriving), **ROOMY), max_num_seqs=39)
    assert "waiting" not in "".join(verdicts(found, "TTFT"))


def test_who_starved_is_known_when_the_records_are_gone() -> None:
    engine = decoding(10)
    short = History(max_records=16)
    found, history = changed(engine, max_num_scheduled_tokens=4)
    short.apply(engine.header)
    for record in history.records:
        short.apply(record)
    assert len(short.records) < SIDE_STEPS
    again = changes(short)
    assert verdicts(compare(short, again[0], again), "ITL") == verdicts(found, "ITL") == {"60% starve"}


@pytest.mark.parametrize(
    ("before", "after", "lower_is_better", "unseen", "said"),
    [
        (10.0, 5.0, True, "", "better"),
        (10.0, 5.0, False, "", "worse"),
        (10.0, 10.1, True, "", "no change"),
        (10.0, 5.0, True, "40% starve", "40% starve"),
        (10.0, 10.1, True, "40% starve", "40% starve"),
        (10.0, 20.0, True, "40% starve", "worse"),
        (10.0, None, True, "40% starve", "40% starve"),
        (None, 5.0, True, "", ""),
        (0.0, 5.0, True, "", "worse"),
        (0.0, 5.0, False, "", "better"),
        (0.0, 0.0, True, "", "no change"),
    ],
)
def test_verdicts(before: float | None, after: float | None, lower_is_better: bool, unseen: str, said: str) -> None:
    assert FigurePair("x", before, after, 99, 99, lower_is_better, unseen=unseen).verdict == said


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_what_a_rate_still_needs_is_no_figure(size: tuple[int, int]) -> None:
    async with seated(size, steps=100) as seat:
        await seat.press("6", "-", "enter")
        await seat.steps(60)
        await seat.press("K")
        (rate,) = (line.partition("out tok/s")[2] for line in seat.lines if "out tok/s" in line and "needs" in line)
        assert rate.split() == ["needs", "10", "s"] * 2
        assert "%" not in "".join(line for line in seat.lines if "no change" in line)
