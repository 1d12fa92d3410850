"""Playing by a clock that tests set, stepping and jumping."""

from __future__ import annotations

from typing import Any

import pytest
from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.console.replay.jumps import JumpError, Jumps, seconds_of, understood
from schedtop.console.replay.player import SPEEDS, Player
from schedtop.engine.recording import Recording
from seat import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def player(recording: Recording, clock: Clock) -> Player:
    return Player(RecordedHistory(recording), clock)


@pytest.mark.parametrize("speed", [0.1, 1.0, 50.0, 1000.0])
def test_after_a_while_the_last_step_that_has_ended_is_shown(
    player: Player, clock: Clock, reported: Any, speed: float
) -> None:
    player.speed = speed
    player.play()
    for _ in range(7):
        clock.now_s += 0.13
        player.advance()
        due_s = reported.records[0].end_s + (clock.now_s - 100.0) * speed
        want = max(index for index, record in enumerate(reported.records) if record.end_s <= due_s or index == 0)
        assert player.history.position == want


def test_playing_stops_at_the_end_and_begins_anew(player: Player, clock: Clock) -> None:
    player.speed = 1000.0
    player.play()
    clock.now_s += 1e6
    assert player.advance() and player.ended and not player.playing
    assert player.status().state == "ended" and not player.advance()
    player.play()
    assert player.history.position == 0 and player.status().state == "playing"


def test_a_change_of_speed_keeps_what_was_played(player: Player, clock: Clock) -> None:
    player.play()
    clock.now_s += 2.0
    player.set_speed(1)
    clock.now_s += 1.0
    player.advance()
    assert player.speed == 2.0
    assert player.clock_s == pytest.approx(player.history.ahead(0).end_s + 4.0)  # type: ignore[union-attr]


def test_speeds_have_ends(player: Player) -> None:
    for _ in range(30):
        player.set_speed(1)
    assert player.speed == SPEEDS[-1] == 1000.0
    for _ in range(30):
        player.set_speed(-1)
    assert player.speed == SPEEDS[0] == 0.1


def test_stepping_passes_over_records_without_work(player: Player, reported: Any) -> None:
    idle = next(index for index, record in enumerate(reported.records) if not record.executed)
    player.move(idle - 1)
    assert player.step(1) and player.history.position == idle + 1
    assert player.step(-1) and player.history.position == idle - 1
    player.move(0)
    assert not player.step(-1) and player.history.position == 0


@pytest.mark.parametrize(
    ("words", "step"),
    [("step 120", 120), ("#7", 7), ("300", 300), ("start", 1), ("end", None), ("100%", None)],
)
def test_jumping_to_steps(player: Player, words: str, step: int | None) -> None:
    Jumps(player).go(words)
    assert player.history.live.step == (player.history.source.num_steps if step is None else step)


@pytest.mark.parametrize("words", ["5s", "0:05", "5000ms", "0:00:05.0"])
def test_jumping_to_a_time(player: Player, reported: Any, words: str) -> None:
    Jumps(player).go(words)
    want = max(index for index, record in enumerate(reported.records) if record.end_s <= 5.0)
    assert player.history.position == want


def test_any_time_shows_the_last_record_that_had_ended_then(player: Player, reported: Any) -> None:
    ends = [record.end_s for record in reported.records]
    assert len(set(ends[290:310])) < 20, "some end at the same time"
    for clock_s in {ends[0] - 0.001, *ends[290:310], ends[-1]}:
        assert player.index_at(clock_s) == sum(end_s <= clock_s for end_s in ends) - 1
    assert player.index_at(ends[-1] + 1) is None


def test_every_preemption_is_reached_both_ways(player: Player, reported: Any) -> None:
    wanted = [index for index, record in enumerate(reported.records) if record.preemptions]
    assert len(wanted) > 3
    jumps, found = Jumps(player), []
    player.move(0)
    while jumps.find("preemptions", forward=True):
        jumps.jump("preemptions", forward=True)
        found.append(player.history.position)
    assert found == [index for index in wanted if index > 0]
    with pytest.raises(JumpError, match="no preemption after"):
        jumps.go("next preemption")
    jumps.go("prev preempt")
    assert player.history.position == wanted[-2]


def test_any_event_is_the_nearest_of_all(player: Player, reported: Any) -> None:
    jumps = Jumps(player, ttft_slo_s=0.5)
    player.move(40)
    index, _ = jumps.find("any", forward=True)  # type: ignore[misc]
    kinds = ("preemptions", "knobs", "refusals", "aborts", "ttft", "itl")
    assert index == min(found[0] for kind in kinds if (found := jumps.find(kind, forward=True)))


def test_outliers_are_above_three_medians_without_an_slo(player: Player, reported: Any) -> None:
    import numpy as np

    gaps = np.concatenate([np.frombuffer(record.itl_s, dtype=np.float32) for record in reported.records])
    limit_s = 3 * float(np.nanmedian(gaps))
    assert Jumps(player).limit_s("itl") == pytest.approx(limit_s, rel=1e-3)
    assert Jumps(player, itl_slo_s=0.2).limit_s("itl") == 0.2


@pytest.mark.parametrize(
    "words",
    ["somewhere", "next", "next thing", "12 parsecs", "-5", "--", "step", "9" * 5000, "9" * 400 + ":00:00"],
    ids=lambda words: words[:20],
)
def test_no_place(player: Player, words: str) -> None:
    with pytest.raises(JumpError):
        understood(words)
    with pytest.raises(JumpError):
        Jumps(player).go(words)


@pytest.mark.parametrize("words", ["999999", "101%", "2h"])
def test_a_place_behind_the_end_is_told_and_nobody_moves(player: Player, words: str) -> None:
    player.move(40)
    steps = player.history.source.num_steps
    with pytest.raises(JumpError, match=f"^{words}: the recording ends with step {steps} at "):
        Jumps(player).go(words)
    assert player.history.position == 40


@pytest.mark.parametrize(("words", "seconds"), [("1:30", 90), ("1:00:01.5", 3601.5), ("2min", 120), ("7", None)])
def test_times(words: str, seconds: float | None) -> None:
    assert seconds_of(words) == seconds


def test_an_outlier_is_told_with_its_limit_in_ms(player: Player) -> None:
    jumps = Jumps(player, itl_slo_s=0.0246)
    player.move(0)
    assert jumps.jump("itl", forward=True).startswith("ITL outlier above 24.6 ms at step ")
