"""The timeline: what its columns hold is what the records say, at any range."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import EngineLink, PlayedLink
from rich.style import Style
from schedtop.console.past import ladder as past
from schedtop.console.past.ladder import Bucket, Ladder, quantile
from schedtop.console.widgets.latency import LatencyPanel
from schedtop.console.widgets.timeline import RANGES_S, Timeline
from schedtop.engine.contract.latencies.cohort import cohort
from schedtop.engine.contract.reading import itl_column
from schedtop.engine.contract.telemetry import Host, StepRecord
from seat import COMPACT, WIDE, Clock, Seat, seated
from synthetic import SyntheticEngine

from tests.engine.harness import ask, engine_of, step

ENGINE = SyntheticEngine(rate=12.0, num_blocks=300)
RECORDS = [*ENGINE.records(400), ENGINE.run_step({"max_num_seqs": 9}), *ENGINE.records(100)]
END_S = RECORDS[-1].end_s


def columns_of(
    ladder: Ladder, begin_s: float, end_s: float, width: int
) -> tuple[list[Bucket | None], float, float]:
    """The columns of a span, when the first begins, and how long each is."""
    grid = ladder.grid(begin_s, end_s, width)
    return ladder.fill(grid), grid.begin_s, grid.column_s


def ladder_of(records: list[StepRecord], looks: int = 1) -> Ladder:
    ladder = Ladder()
    for index, record in enumerate(records):
        ladder.take(record)
        if index % looks == 0:
            columns_of(ladder, 0.0, record.end_s, 10)
    return ladder


@given(begin=st.floats(0.0, 0.9), length=st.floats(0.01, 1.0), width=st.integers(1, 200), looks=st.integers(1, 600))
def test_every_column_keeps_the_peaks_and_counts_of_its_records(
    begin: float, length: float, width: int, looks: int
) -> None:
    ladder = ladder_of(RECORDS, looks)
    begin_s, end_s = begin * END_S, min(END_S, (begin + length) * END_S)
    columns, first_s, length_s = columns_of(ladder, begin_s, end_s, width)
    assert len(columns) <= width
    for index, bucket in enumerate(columns):
        start_s = first_s + index * length_s
        inside = [record for record in RECORDS if start_s <= record.end_s < start_s + length_s]
        assert (bucket is None) == (not inside)
        if bucket is not None:
            same_as(bucket, inside)


def same_as(bucket: Bucket, records: list[StepRecord]) -> None:
    steps_s = [record.end_s - record.start_s for record in records]
    ttft_s = [seconds for record in records for _, seconds in record.ttft_s]
    assert bucket.num_steps == len(records)
    assert sum(bucket.tokens) == max(record.scheduled_tokens for record in records)
    assert bucket.max_step_s == max(steps_s)
    assert bucket.used == max(record.blocks.held + record.blocks.shared for record in records)
    assert (bucket.running, bucket.waiting) == (
        max(record.running for record in records),
        max(record.waiting for record in records),
    )
    assert bucket.max_ttft_s == max(ttft_s, default=0.0) and sum(bucket.ttft.values()) == len(ttft_s)
    assert bucket.marks.get("V", 0) == sum(len(record.preemptions) for record in records)
    assert bucket.marks.get("K", 0) == sum(len(record.knobs) for record in records)
    middle = quantile(bucket.steps, 0.5)
    assert middle is not None
    assert middle == pytest.approx(sorted(steps_s)[math.ceil(len(steps_s) / 2) - 1], rel=0.05)


def test_one_slow_step_is_seen_however_long_the_range() -> None:
    slow, later_s = RECORDS[250], 5.0
    records = [*RECORDS[:250], msgspec.structs.replace(slow, end_s=slow.end_s + later_s)]
    ladder = ladder_of(records)
    for range_s in (10.0, 60.0, 3600.0, 86_400.0):
        end_s = records[-1].end_s
        columns, _, _ = columns_of(ladder, end_s - range_s, end_s, 80)
        found = [bucket for bucket in columns if bucket is not None]
        assert max(bucket.max_step_s for bucket in found) == pytest.approx(later_s + slow.end_s - slow.start_s)
        assert slow.seq in {bucket.slowest for bucket in found}


@pytest.mark.parametrize("begin", [0.0, 0.3, 0.6, 0.9])
def test_a_short_range_far_back_is_drawn_from_what_is_still_kept(
    begin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEPT", "FINE_KEPT"):
        monkeypatch.setattr(past, name, 128)
    ladder, begin_s = ladder_of(RECORDS), begin * END_S
    columns, first_s, length_s = columns_of(ladder, begin_s, begin_s + 0.1 * END_S, 100)
    ends_s = first_s + len(columns) * length_s
    inside = [record for record in RECORDS if first_s <= record.end_s < ends_s]
    assert sum(bucket.num_steps for bucket in columns if bucket is not None) == len(inside) > 0


def engine_and_next() -> tuple[EngineLink, EngineLink]:
    """An engine, and another that takes its place."""
    engine = SyntheticEngine(seed=8, rate=12.0, num_blocks=300)
    second = EngineLink(engine, 20)
    second.messages[0] = engine.header(started_at=1_760_000_010.0)
    return EngineLink(SyntheticEngine(rate=12.0, num_blocks=300), 150), second


async def restart(seat: Seat, first: EngineLink, second: EngineLink) -> None:
    seat.link = second
    first.break_off("the connection was closed")
    while not second.taken:
        await seat.pilot.pause(0.01)
    await seat.settle()


async def test_a_step_of_the_run_before_a_restart_is_a_column_and_a_key_away() -> None:
    first, second = engine_and_next()
    async with seated(link=first, reopen=lambda: second) as seat:
        view, old = seat.app.view, seat.app.history.latest
        assert old is not None
        # A question about a request of this run is still open when another engine answers.
        assert "Abort" in await seat.press("3", "delete")
        await restart(seat, first, second)
        assert "ended with its engine" in await seat.press("y") and not second.sent
        view.cursor_s = -view.present.before.earlier_s + old.end_s  # type: ignore[union-attr]
        text = await seat.press("1", "enter")
        assert "RUN BEFORE" in text and view.moment.record is not None
        assert view.moment.record.step <= old.step and view.history is not view.present
        shown = view.moment.record.step
        await seat.press("left")
        assert view.moment.record.step == shown - 1
        while view.history is not view.present:
            await seat.press("right")
        assert view.pinned == view.present.records[0].seq
        await seat.press("left")
        assert view.moment.record.step == old.step
        # Numbers of its requests are those of others now.
        assert view.history.live.requests and "it has ended" in await seat.press("3", "delete")
        assert not second.sent
        text = await seat.press("2", "end")
        assert view.pinned is None and view.history is view.present and "RUN BEFORE" not in text


@pytest.mark.parametrize("range_s", RANGES_S)
async def test_the_timeline_of_a_paused_view_stands_still(range_s: float | None) -> None:
    async with seated() as seat:
        timeline = seat.live.batch_panel.timeline
        timeline.range_index = RANGES_S.index(range_s)
        await seat.press("1", "space")
        before = timeline.span
        assert "+300 steps" in (await seat.steps(300)).splitlines()[0]
        assert timeline.span == before
        await seat.press("space")
        assert timeline.span > before


async def test_in_a_paused_view_the_cursor_is_as_long_ago_as_it_was() -> None:
    async with seated() as seat:
        await seat.press("1", "left", "left")
        live = seat.live.batch_panel.timeline.headline(150)[-1]
        await seat.steps(30)
        assert seat.live.batch_panel.timeline.headline(150)[-1] != live
        await seat.press("space")
        before = seat.live.batch_panel.timeline.headline(150)[-1]
        assert before[0].startswith("cursor ") and before[0].endswith(" ago")
        await seat.steps(300)
        assert seat.live.batch_panel.timeline.headline(150)[-1] == before


async def test_of_the_run_before_nothing_is_said_that_was_found_in_this_one() -> None:
    first, second = engine_and_next()
    now = Clock()
    async with seated(link=first, reopen=lambda: second, now=now) as seat:
        view, explain = seat.app.view, seat.app.explain
        for _ in range(200):
            await seat.steps(5)
            explain.look(view)
            if explain.num_active:
                break
        text = await seat.press("2")
        title = view.findings[0].shown.title
        assert title[:40] in text and "finding" in seat.lines[0]
        await restart(seat, first, second)
        assert not explain.entries, "they are of an engine that is gone"
        now.now_s += 60.0  # the new engine has been told of
        for _ in range(200):
            await seat.steps(5)
            explain.look(view)
            if explain.num_active:
                break
        text = await seat.press("2")
        title = view.findings[0].shown.title
        assert title[:40] in text and "finding" in seat.lines[0]
        view.pin(view.present.before.records[-1].seq)  # type: ignore[union-attr]
        text = await seat.press("2")
        assert "RUN BEFORE" in text and title[:40] not in text and "finding" not in seat.lines[0]
        assert "not of the run before" in await seat.press("x")


def test_a_ladder_that_was_sent_is_the_same() -> None:
    ladder = ladder_of(RECORDS)
    sent = Ladder.unpacked(ladder.packed())
    assert (sent.begins_s, sent.ends_s) == (ladder.begins_s, ladder.ends_s) == (RECORDS[0].start_s, END_S)
    for span in ((0.0, END_S), (END_S - 3.0, END_S)):
        grid = ladder.grid(*span, 100)
        assert sent.grid(*span, 100) == grid
        for one, other in zip(sent.fill(grid), ladder.fill(grid), strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.packed() == other.packed()


def test_times_may_be_moved() -> None:
    ladder = Ladder()
    ladder.begin(ENGINE.snapshot(), shift_s=1000.0)
    for record in RECORDS:
        ladder.take(record)
    columns, first_s, _ = columns_of(ladder, 1000.0, 1000.0 + END_S, 50)
    assert first_s == pytest.approx(1000.0, abs=END_S / 50)
    assert sum(bucket.num_steps for bucket in columns if bucket is not None) == len(RECORDS)
    assert columns[-1] is not None and columns[-1].end_s == 1000.0 + END_S == ladder.ends_s


@pytest.mark.parametrize("size", [WIDE, COMPACT])
async def test_the_lanes_share_one_axis_and_one_cursor(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        names = ("tokens", "KV", "run/wait", "TTFT", "ITL")
        assert "[1]Timeline" in seat.text and all(
            any(line.startswith(name) for line in seat.lines) for name in names
        )
        latest = seat.app.history.latest
        assert latest is not None
        text = await seat.press("1", "left", "left", "left")
        assert "cursor" in text and seat.app.view.pinned is None
        await seat.press("enter")
        pinned = seat.app.view.pinned
        assert pinned is not None and pinned < latest.seq
        assert "[1]" in seat.text and "Batch" in seat.lines[2]
        await seat.press("escape", "escape")
        assert seat.app.view.pinned is None and "Timeline" in seat.text


async def test_the_range_is_chosen_and_shown() -> None:
    async with seated() as seat:
        assert "1m00s" in await seat.press("1") or "60 s" in seat.text
        assert "5m00s" in await seat.press("+")
        assert "─ all ─" in await seat.press("+", "+")
        assert "10 s" in await seat.press("-", "-", "-", "-")


async def test_the_host_has_a_lane_and_is_not_available_where_nothing_is_told() -> None:
    async with seated() as seat:
        [lane] = [line for line in seat.lines if line.startswith("host")]
        assert "n/a" in lane and not any(line.startswith("GPU") for line in seat.lines)
    engine = SyntheticEngine(rate=12.0)
    records = engine.records(60)
    reported = [
        msgspec.structs.replace(record, host=(Host(1.0, 0.5, 0.04, 0.9, 990, 1980),) if index == 59 else ())
        for index, record in enumerate(records)
    ]
    async with seated(link=PlayedLink([engine.header(), SyntheticEngine().snapshot(), *reported])) as seat:
        [lane] = [line for line in seat.lines if line.startswith("host")]
        assert "50%+4%" in lane
        assert any(line.startswith("GPU") and "90%@50%" in line for line in seat.lines)


def test_the_host_keeps_the_worst_of_each() -> None:
    reported = (
        Host(1.0, 0.5, 0.3, 0.2, 990, 1980),
        Host(1.0, 0.9, 0.1, None),
        Host(1.0, 0.1, None, 0.4, 1980, 1980),
    )
    records = [msgspec.structs.replace(RECORDS[index], host=(host,)) for index, host in enumerate(reported)]
    bucket = Bucket.of([*records, *RECORDS[3:9]])
    assert (bucket.cpu, bucket.delay, bucket.gpu, bucket.clock) == (0.9, 0.3, 0.4, 0.5)


@pytest.mark.parametrize("until", [120, 300, len(RECORDS)])
def test_first_tokens_are_those_of_the_shared_cohort(until: int) -> None:
    records = RECORDS[:until]
    waits: dict[int, float] = {}
    for record in records:
        waits |= {arrival.number: arrival.arrival_s for arrival in record.arrivals}
        for number in (*(number for number, _ in record.ttft_s), *(end.number for end in record.finishes)):
            waits.pop(number, None)
    end_s = records[-1].end_s
    wanted = cohort(
        [seconds for record in records for _, seconds in record.ttft_s], [end_s - at_s for at_s in waits.values()]
    ).quantile(0.95)
    [*_, bucket], _, _ = columns_of(ladder_of(records), 0.0, end_s, 1)
    assert bucket is not None and sum(bucket.open.values()) == len(waits)
    found = bucket.p95("ttft")
    assert found is not None and wanted is not None
    assert found.least == pytest.approx(wanted.least, rel=0.05) and found.is_bound == wanted.is_bound


def test_gaps_are_those_of_the_shared_cohort() -> None:
    """Tokens for three of twelve requests in a step: the others have a gap that no output ends."""
    engine = engine_of(
        *(ask(f"{place:02}", 6, 40) for place in range(12)), max_num_batched_tokens=20, num_blocks=40
    )
    ladder, gaps = Ladder(), []
    for index in range(40):
        if index == 5:
            engine.set_knobs({"max_num_batched_tokens": 3})
        record = step(engine)
        gaps += itl_column(record).tolist()
        ladder.take(record)
    open_s = engine.unended().itl
    wanted = cohort(gaps, open_s[open_s > 0]).quantile(0.95)
    [*_, bucket], _, _ = columns_of(ladder, 0.0, engine.clock_s, 1)
    assert bucket is not None and sum(bucket.open_itl.values()) == int((open_s > 0).sum()) > 5
    found = bucket.p95("itl")
    assert found is not None and wanted is not None and found.is_bound and wanted.is_bound
    assert found.least == pytest.approx(wanted.least, rel=0.05)


def test_who_waited_before_the_console_came_counts() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    engine.records(400)
    snapshot = engine.snapshot()
    ladder = Ladder()
    ladder.begin(snapshot)
    record = engine.records(1)[0]
    ladder.take(record)
    [bucket], _, _ = columns_of(ladder, record.end_s, record.end_s, 1)
    waiting = {item.arrival.number for item in snapshot.requests if item.first_token_s is None}
    waiting |= {arrival.number for arrival in record.arrivals}
    assert waiting and bucket is not None
    assert sum(bucket.open.values()) == len(waiting - {number for number, _ in record.ttft_s})


async def test_limits_are_lines_in_their_lanes() -> None:
    async with seated(ttft_slo_s=None) as seat:
        assert not any("╌" in line for line in lane_of(seat.lines, "TTFT"))
    async with seated(ttft_slo_s=0.001, itl_slo_s=0.001) as seat:
        assert any("╌" in line for line in lane_of(seat.lines, "TTFT"))
        assert any("╌" in line for line in lane_of(seat.lines, "ITL"))


def lane_of(lines: list[str], name: str) -> list[str]:
    """The rows of a lane, up to the next one."""
    first = next(index for index, line in enumerate(lines) if line.startswith(name))
    rest = lines[first + 1 :]
    return [lines[first], *rest[: next(index for index, line in enumerate(rest) if line[:1].strip())]]


async def test_what_is_kept_from_frame_to_frame_is_what_is_drawn_anew() -> None:
    """Lanes and windows keep what is over: at every step and in other colours they look the same."""
    async with seated(WIDE) as seat:
        view, live = seat.app.view, seat.live

        def drawn(timeline: Timeline, latency: LatencyPanel) -> list[list[tuple[str, Style]]]:
            with view.history.lock:
                view.look()
                return [line.pieces for line in [*timeline.lines(150, 14), *latency.body(79, 14)]]

        seen = set()
        for key in ("",) * 12 + ("t", "1", "left", "left", "", "end", ""):
            await (seat.press(key) if key else seat.steps(3))
            kept = drawn(live.batch_panel.timeline, live.latency)
            assert kept == drawn(Timeline(view), LatencyPanel(view, id="anew"))
            seen.add(str(kept))
        assert len(seen) > 12
