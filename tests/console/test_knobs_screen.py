"""The Knobs screen: presets, trials, and what changes did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from links import EngineLink
from schedtop.console.knobs.comparison import changes, compare
from schedtop.console.knobs.presets import BUILT_IN, PresetError, load_presets, save_preset
from schedtop.console.past import sample_sizes
from schedtop.console.past.history import MAX_RECORDS, History
from schedtop.console.screens.knobs import KnobsScreen
from schedtop.console.screens.live import LiveScreen
from schedtop.engine.contract.commands import EndTrial, Incoming, SetKnobs
from schedtop.engine.contract.knobs import check_value
from schedtop.engine.contract.telemetry import Notice, Trial
from seat import COMPACT, STRIP, WIDE, seated
from synthetic import SyntheticEngine
from textual.events import Key


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def served(
    steps: int, after: int, max_records: int = MAX_RECORDS, **knobs: object
) -> tuple[History, SyntheticEngine]:
    """An engine that ran `steps` steps, changed `knobs`, and ran `after` more."""
    engine = SyntheticEngine(rate=6.0, num_blocks=600)
    history = History(max_records)
    for message in (engine.header(), engine.snapshot(), *engine.records(steps)):
        history.apply(message)
    history.apply(engine.run_step(knobs))
    for record in engine.records(after):
        history.apply(record)
    return history, engine


def test_before_and_after_are_the_samples_of_their_own_seconds() -> None:
    history, _ = served(600, 600, max_num_scheduled_tokens=256)
    found = changes(history)
    result = compare(history, found[0], found)
    figure = next(item for item in result.figures if item.name == "ITL p95 ms")
    second = int(found[0].clock_s)
    sides = [
        np.concatenate([np.frombuffer(r.itl_s, np.float32) for r in history.records if test(int(r.end_s))])
        for test in (lambda s: 1 <= s < second, lambda s: second < s < int(history.live.clock_s))
    ]
    before, after = (side[~np.isnan(side)] for side in sides)
    assert figure.before_n >= len(before) and figure.after_n == len(after)
    assert figure.after == pytest.approx(float(np.quantile(after, 0.95)) * 1000, abs=0.01)


def test_too_few_samples_give_no_figure() -> None:
    history, _ = served(600, 30, max_num_scheduled_tokens=256)
    found = changes(history)
    figures = compare(history, found[0], found).figures
    lacking = [
        item for item in figures if item.share is not None and item.after_n < sample_sizes.needed(item.share)
    ]
    assert lacking and all(figure.after is None for figure in lacking)


def test_what_was_before_a_change_outlives_its_records() -> None:
    long, short = (served(600, 600, max_records, max_num_scheduled_tokens=256)[0] for max_records in (8192, 200))
    found = changes(long)
    assert short.records[0].end_s > found[0].clock_s
    figures = compare(long, found[0], found).figures
    assert compare(short, found[0], found).figures == figures
    rate = next(figure for figure in figures if figure.name == "out tok/s")
    second = int(found[0].clock_s)
    inside = [record for record in long.records if record.end_s >= 1.0 and record.end_s < second + 1.0]
    last = next(record for record in inside if record.end_s >= second)
    span_s = last.end_s - inside[0].end_s
    tokens = last.totals.output_tokens - inside[0].totals.output_tokens
    assert rate.before == pytest.approx(tokens / span_s)


def test_windows_never_reach_past_another_change() -> None:
    history, engine = served(300, 300, max_num_scheduled_tokens=256)
    history.apply(engine.run_step({"max_num_seqs": 8}))
    for record in engine.records(300):
        history.apply(record)
    found = changes(history)
    assert [change.knobs[0].name for change in found] == ["max_num_seqs", "max_num_scheduled_tokens"]
    result = compare(history, found[0], found)
    assert result.before_s <= found[0].clock_s - found[1].clock_s


def test_built_in_presets_hold_values_that_knobs_take() -> None:
    for preset in BUILT_IN:
        for name, value in preset.values.items():
            check_value(name, value)


def test_own_presets_are_kept_and_read_back(tmp_path: Path) -> None:
    values = {
        "max_num_seqs": 12,
        "max_num_scheduled_tokens": None,
        "watermark": 0.05,
        "enable_prefix_caching": False,
    }
    save_preset(tmp_path, "night", values)
    save_preset(tmp_path, "day", {"max_num_seqs": 64})
    own = {preset.name: dict(preset.values) for preset in load_presets(tmp_path)[0] if preset.own}
    assert own == {"night": values, "day": {"max_num_seqs": 64}}


@pytest.mark.parametrize("name", ["", "a b", "../x", "smooth", "x" * 40])
def test_a_bad_preset_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PresetError):
        save_preset(tmp_path, name, {})


OWN_FILE = """\
# what the night shift uses
[night] # from 22:00
max_num_seqs = 12   # not more
turbo = "a knob of a later version"

[slip]
max_num_seqs = "many"

[other]
watermark = 0.05
"""


def test_saving_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    """Comments, unknown knobs and presets that cannot be read are the operator's."""
    path = tmp_path / "presets.toml"
    path.write_text(OWN_FILE)
    path.chmod(0o640)
    save_preset(tmp_path, "day", {"max_num_seqs": 64, "max_num_active_seqs": None})
    added = '\n[day]\nmax_num_seqs = 64\nmax_num_active_seqs = "auto"\n'
    assert path.read_text() == OWN_FILE + added and path.stat().st_mode & 0o777 == 0o640
    save_preset(tmp_path, "night", {"max_num_seqs": 13})
    assert path.read_text() == OWN_FILE.replace("max_num_seqs = 12 ", "max_num_seqs = 13 ") + added
    assert [entry.name for entry in tmp_path.iterdir()] == ["presets.toml"]


def test_a_linked_preset_file_stays_a_link(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "presets.toml"
    kept.parent.mkdir()
    kept.write_text(OWN_FILE)
    (tmp_path / "presets.toml").symlink_to(kept)
    save_preset(tmp_path, "day", {"max_num_seqs": 64})
    assert (tmp_path / "presets.toml").is_symlink() and "[day]" in kept.read_text()


@pytest.mark.parametrize(
    "text", ["[night]\nmax_num_seqs = \n", "x = " + "[" * 5000, "a = 1\nb = \xff".encode("latin-1")]
)
def test_nothing_is_saved_over_a_file_that_cannot_be_read(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "presets.toml"
    before = text.encode() if isinstance(text, str) else text
    path.write_bytes(before)
    with pytest.raises(PresetError, match="nothing was saved"):
        save_preset(tmp_path, "day", {"max_num_seqs": 64})
    assert path.read_bytes() == before
    assert len(load_presets(tmp_path)[1]) == 1


def test_a_write_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "presets.toml"
    path.write_text(OWN_FILE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_preset(tmp_path, "day", {"max_num_seqs": 64})
    assert path.read_text() == OWN_FILE and len(list(tmp_path.iterdir())) == 1


def test_a_broken_preset_file_is_told_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "presets.toml").write_text("[a]\nmax_num_seqs = 0\n[b]\nmax_num_seqs = 4\n")
    presets, problems = load_presets(tmp_path)
    assert [preset.name for preset in presets if preset.own] == ["b"]
    assert len(problems) == 1 and "max_num_seqs=0" in problems[0]
    (tmp_path / "presets.toml").write_text("nonsense [")
    presets, problems = load_presets(tmp_path)
    assert presets == list(BUILT_IN) and "is not valid TOML" in problems[0]


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP, (300, 80)])
async def test_the_screen_opens_and_escape_returns(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        text = await seat.press("K")
        assert isinstance(seat.app.screen, KnobsScreen) and "max_num_batched_tokens" in text
        assert all(len(line) == size[0] for line in seat.lines)
        await seat.press("escape")
        assert isinstance(seat.app.screen, LiveScreen)


async def test_a_preset_is_staged_then_applied() -> None:
    async with seated() as seat:
        await seat.press("K", "tab", "down", "enter")
        assert seat.app.staging.staged == {
            "max_num_scheduled_tokens": None,
            "long_prefill_token_threshold": 0,
            "watermark": 0.0,
        }
        await seat.press("enter")
        assert seat.app.history.live.knobs["watermark"] == 0.0
        assert "3 changes" in seat.text or "1 change" in seat.text


class SlowLink(EngineLink):
    """An engine that takes its time over changes: the test answers them."""

    def answer(self, command: Incoming) -> None:
        if not isinstance(command, SetKnobs) or command.dry_run:
            super().answer(command)


async def test_a_change_is_sent_once_however_often_enter_is_pressed() -> None:
    link = SlowLink(SyntheticEngine(rate=12.0, num_blocks=300), 60)
    async with seated(link=link) as seat:
        text = await seat.press("6", "down", "down", "-", "enter")
        assert "sent, no answer yet" in text and "sent max_num_seqs" in seat.lines[-1]
        assert "not answered the last change yet" in await seat.press("enter")
        (sent,) = (command for command in seat.asked(SetKnobs) if not command.dry_run)
        EngineLink.answer(link, sent)
        await seat.settle()
        assert "applied max_num_seqs" in seat.text and "not answered" not in seat.text
        assert seat.app.history.live.knobs["max_num_seqs"] == 15


async def test_after_a_broken_link_a_change_can_be_sent_anew() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    first, second = SlowLink(engine, 60), EngineLink(engine, 5)
    async with seated(link=first, reopen=lambda: second) as seat:
        await seat.press("6", "down", "down", "-", "enter")
        first.break_off("the connection was closed")
        seat.link = second
        while not second.taken:
            await seat.pilot.pause(0.01)
        await seat.settle()
        assert seat.app.staging.staged == {"max_num_seqs": 15} and "1 staged" in seat.text
        await seat.press("enter")
        assert seat.app.history.live.knobs["max_num_seqs"] == 15


@pytest.mark.parametrize("keys", [("6", "-"), ("6", "R"), ("6", "u"), ("K", "tab", "down", "enter")])
async def test_nothing_is_staged_while_a_past_step_is_shown(keys: tuple[str, ...]) -> None:
    async with seated() as seat:
        await seat.press("6", "-", "enter")
        await seat.press("1", "z", "left", "left")
        text = await seat.press(*keys)
        assert "a past step is shown; End returns to the present" in text
        assert not seat.app.staging.staged
        await seat.press("end", *keys[-1:])
        assert seat.app.staging.staged


async def test_a_preset_above_a_ceiling_is_refused_whole(tmp_path: Path) -> None:
    save_preset(tmp_path, "wide", {"watermark": 0.25, "max_num_seqs": 128})
    async with seated(config_dir=tmp_path) as seat:
        text = await seat.press("K", "tab", "G", "enter")
        assert "wide cannot be staged" in text and "must be at most 64" in text
        assert not seat.app.staging.staged


async def test_present_values_become_a_preset(tmp_path: Path) -> None:
    async with seated(config_dir=tmp_path) as seat:
        text = await seat.press("K", "tab", "w", *"mine", "enter")
        assert "saved" in text and "mine" in text
        assert "[mine]" in (tmp_path / "presets.toml").read_text()


async def test_a_trial_counts_down_and_is_confirmed() -> None:
    clock = Clock()
    async with seated(now=clock) as seat:
        text = await seat.press("6", "down", "down", "-", "c")
        assert "seconds until it reverts unless confirmed or once an SLO breaks (30)" in text
        text = await seat.press("enter")
        assert "On trial: max_num_seqs 15. Reverts in 30 s" in text
        asked = seat.asked(SetKnobs)[-1]
        assert asked.trial_s == 30.0 and asked.slo_s == {"ttft": 0.5, "itl": 0.08}
        clock.now_s += 12.0
        await seat.settle()
        assert "Reverts in 18 s" in seat.text
        text = await seat.press("c")
        assert "confirmed" in text and "On trial" not in text
        assert seat.asked(EndTrial)[-1].keep
        assert seat.app.history.live.knobs["max_num_seqs"] == 15


async def test_a_trial_is_as_long_as_was_typed_and_ended_by_hand() -> None:
    async with seated() as seat:
        assert "no change is on trial" in await seat.press("6", "r")
        assert "enter a number of seconds" in await seat.press("down", "down", "-", "c", *"soon", "enter")
        await seat.press(*["backspace"] * 4, *"120", "enter")
        assert seat.asked(SetKnobs)[-1].trial_s == 120.0
        text = await seat.press("r")
        assert "ended by hand" in text and "On trial" not in text
        assert seat.app.history.live.knobs["max_num_seqs"] == 16


async def test_a_trial_the_engine_took_back_is_told() -> None:
    async with seated() as seat:
        await seat.press("6", "down", "down", "-", "c", "enter")
        assert isinstance(seat.link, EngineLink)
        seat.link.end_trial(keep=False, why="back to max_num_seqs 16: not confirmed in time")
        await seat.settle()
        assert "not confirmed in time" in seat.text and "On trial" not in seat.text
        assert seat.app.history.live.knobs["max_num_seqs"] == 16


async def test_a_trial_of_another_console_is_shown_and_can_be_ended() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    link = EngineLink(engine)
    link.trial = Trial(1, {"max_num_seqs": 16}, {"max_num_seqs": 12}, 20.0)
    link.messages[1] = msgspec.structs.replace(engine.snapshot(), trial=link.trial)
    link.run_steps(50)
    async with seated(link=link) as seat:
        assert "On trial: max_num_seqs 16" in seat.text
        await seat.press("6", "r")
        assert seat.app.history.live.knobs["max_num_seqs"] == 12 and "On trial" not in seat.text


async def test_what_is_staged_is_never_taken_for_what_is_on_trial() -> None:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    link = EngineLink(engine, 50)
    async with seated(link=link) as seat:
        await seat.press("6", "down", "down", "-")
        link.trial = Trial(1, {"watermark": 0.1}, {"watermark": 0.02}, 20.0)  # somebody else's
        link.push(Notice("info", "on trial", link.trial))
        await seat.settle()
        text = await seat.press("c")
        assert "watermark 0.1 is on trial: revert it (r) first" in text
        assert not seat.asked(EndTrial) and seat.app.staging.staged == {"max_num_seqs": 15}
        await seat.press("r", "c", "enter")
        assert [end.keep for end in seat.asked(EndTrial)] == [False]
        assert seat.app.history.live.knobs["max_num_seqs"] == 15
        await seat.press("-", "escape", "c")
        assert [end.keep for end in seat.asked(EndTrial)] == [False, True]


@pytest.mark.parametrize("size", [WIDE, COMPACT, STRIP])
async def test_a_refused_value_stays_to_be_corrected(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.press("6", "home", "down", "down", "equals_sign")
        before = "16"
        for typed, lack in (("99", "at most 64"), ("0", "at least 1"), ("many", "number")):
            await seat.press(*["backspace"] * len(before), *typed, "enter")
            assert f"max_num_seqs (1..64): {typed}" in seat.lines[-1] and lack in seat.lines[-1]
            assert not seat.app.staging.staged and seat.live.typing
            before = typed
        await seat.press(*["backspace"] * len(before), *"12", "enter")
        assert seat.app.staging.staged == {"max_num_seqs": 12} and not seat.live.typing


async def test_keys_that_edit_take_their_turn_however_fast_they_come() -> None:
    async with seated() as seat:
        await seat.press("6", "home", "down", "down", "equals_sign")
        keys = [
            "backspace",
            "backspace",
            *"998",
            "left",
            "9",
            "enter",
            *["backspace"] * 9,
            "2",
            "end",
            "1",
            "enter",
        ]
        for key in keys:
            seat.app.post_message(Key(key, key if len(key) == 1 else None))
        await seat.settle()
        # 9998 is refused and stays to be edited, with the cursor at its end.
        assert seat.app.staging.staged == {"max_num_seqs": 21} and not seat.live.typing
        for key in ("equals_sign", *["backspace"] * 2, "9", "enter", "c", "enter"):
            seat.app.post_message(Key(key, key if len(key) == 1 else None))
        await seat.settle()
        assert seat.asked(SetKnobs)[-1].trial_s == 30.0 and seat.app.history.live.knobs["max_num_seqs"] == 9


async def test_nothing_typed_changes_nothing() -> None:
    async with seated() as seat:
        text = await seat.press("6", "home", "down", "down", "equals_sign", *["backspace"] * 2, "enter")
        assert "nothing was typed: max_num_seqs stays 16" in text and not seat.app.staging.staged
        await seat.press("up", "equals_sign", *["backspace"] * 8, "enter")
        assert not seat.live.typing and "nothing was typed" not in seat.text  # empty is auto


async def test_a_change_leads_to_its_step() -> None:
    async with seated() as seat:
        await seat.press("6", "-", "enter")
        step = seat.app.history.live.step
        await seat.steps(20)
        await seat.press("K", "tab", "tab", "enter")
        assert isinstance(seat.app.screen, LiveScreen)
        assert seat.app.view.moment.state.step == step


@dataclass
class Sure:
    value: float | None
    error: float | None = 0.0


@dataclass
class Fake:
    horizon_s: float
    base: dict[str, Sure]
    staged: dict[str, Sure]
    change: dict[str, Sure]
    note: str = ""


async def test_what_staged_values_are_expected_to_do_is_shown() -> None:
    asked: list[dict[str, object]] = []

    def make_forecast(header: object, snapshot: object, staged: Mapping[str, object], recent: object) -> Fake:
        asked.append(dict(staged))
        return Fake(
            10.0,
            {"itl_p95_s": Sure(0.050), "output_tokens_per_s": Sure(900.0)},
            {"itl_p95_s": Sure(0.030), "output_tokens_per_s": Sure(901.0)},
            {"itl_p95_s": Sure(-0.020, 0.002), "output_tokens_per_s": Sure(1.0, 5.0)},
        )

    async with seated(make_forecast=make_forecast) as seat:
        await seat.press("K", "down", "minus")
        await seat.settle()
        assert asked[-1] == {"max_num_scheduled_tokens": 448}
        assert "expected over the next 10 s" in seat.text
        assert (
            "ITL p95 50.0 ms→30.0 ms ±2.0 ms better" in seat.text
            and "out tok/s" not in seat.text.split("[9]")[0][-900:]
        )


async def test_why_there_is_no_forecast_is_said() -> None:
    def make_forecast(*_: object) -> Fake:
        raise ValueError("cuda is a real device")

    async with seated(make_forecast=make_forecast) as seat:
        await seat.press("K", "down", "minus")
        await seat.settle()
        assert "no forecast: cuda is a real device" in seat.text
