"""The key table, rows and filters, the staging, layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.console.actions import (
    ACTIONS,
    LIVE,
    PANELS,
    REPLAY,
    SCOPES,
    ActionError,
    Registry,
    key_name,
    load_keymap,
)
from schedtop.console.drawing import layout
from schedtop.console.drawing.stacked_columns import column_levels, shares
from schedtop.console.knobs.staged import Staging
from schedtop.console.life.request_list import Filter, RequestList
from schedtop.console.past.history import History
from schedtop.console.screens import base
from schedtop.engine.contract.knobs import KnobError
from synthetic import SyntheticEngine


def test_every_action_has_a_title_a_known_scope_and_one_id() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    for action in ACTIONS:
        assert action.title and action.scope in SCOPES


def test_every_action_is_carried_out_by_some_screen() -> None:
    folder = Path(base.__file__).parents[1]
    known = "".join(path.read_text() for path in folder.rglob("*.py"))
    for action in ACTIONS:
        written = (f"def do_{action.id}(", f'"{action.id}": lambda')
        assert any(words in known for words in written) or action.title[6:] in PANELS, action.id


def test_digits_mean_the_same_everywhere() -> None:
    registry = Registry()
    for scope in SCOPES:
        for digit in "1234567":
            action = registry.find(digit, scope)
            assert action is not None and action.id == f"panel_{digit}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"zoom": ["q"]}, "q is bound to both"),
        ({"follow": ["1"]}, "1 is bound to both"),
        ({"quit": ["f"]}, "f is bound to both"),
        ({"no_such": ["x"]}, "no action is called 'no_such'"),
    ],
)
def test_keys_that_would_mean_two_things_are_refused(overrides: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ActionError, match=words):
        Registry(overrides)


def test_keys_of_different_panels_may_be_equal() -> None:
    registry = Registry()
    assert registry.find("enter", "requests") is registry["detail"]
    assert registry.find("enter", "knobs") is registry["knob_apply"]
    assert registry.find("enter", "kv") is None


def test_a_keymap_is_written_as_people_write_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('zoom = "^Z"\npalette = [":", "^P"]\nsuspend = []\n')
    registry = Registry(load_keymap(path))
    assert registry["zoom"].keys == ("ctrl+z",) and registry["palette"].keys == ("colon", "ctrl+p")
    assert load_keymap(tmp_path / "none.toml") == {}
    path.write_text("zoom = 3")
    with pytest.raises(ActionError, match=r"keys\.toml: zoom must be a key"):
        load_keymap(path)


def test_key_names_are_short() -> None:
    assert [key_name(key) for key in ("ctrl+p", "question_mark", "full_stop", "j")] == ["^P", "?", ".", "j"]


def table() -> tuple[RequestList, History]:
    engine = SyntheticEngine(rate=12.0, num_blocks=300)
    history = History()
    for message in (engine.header(), engine.snapshot(), *engine.records(150)):
        history.apply(message)
    return RequestList(history, history.now()), history


@pytest.mark.parametrize("column", ["id", "state", "kv", "age", "ttft", "itl", "out", "progress", "preempt"])
@pytest.mark.parametrize("descending", [True, False])
def test_sorting_keeps_every_request_and_puts_unknown_values_last(column: str, descending: bool) -> None:
    made, _ = table()
    numbers = made.ordered(made.numbers, column, descending)
    assert sorted(numbers) == sorted(made.numbers)
    values = [getattr(made.row(number), column) for number in numbers]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=descending)
    assert all(value is None for value in values[len(known) :])


@pytest.mark.parametrize(
    ("words", "test"),
    [
        ("decode", lambda row: "decode" in row.state),
        ("!decode", lambda row: "decode" not in row.state),
        ("kv>10", lambda row: row.kv > 10),
        ("kv>10 out<40", lambda row: row.kv > 10 and row.out < 40),
        ("ttft>500", lambda row: row.ttft is not None and row.ttft > 0.5),
        ("age>=1s", lambda row: row.age >= 1),
        ("r-04", lambda row: "r-04" in row.id),
        ("", lambda row: True),
        ("!kv>10", lambda row: row.kv <= 10),
        ("progress>50% itl<80ms", lambda row: row.progress > 0.5 and row.itl is not None and row.itl < 0.08),
        ("prio=0", lambda row: row.priority == 0),
        ("decode kv>2x", lambda row: "decode" in row.state),
    ],
)
def test_filters(words: str, test: object) -> None:
    made, _ = table()
    kept = Filter(words)
    rows = [made.row(number) for number in made.numbers]
    assert [row for row in rows if kept.keeps(row)] == [row for row in rows if test(row)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("kv>2x", "kv>2x: 2x is not a number"),
        ("r-04 kv>2ms", "kv>2ms: 2ms is not a number"),
        ("age>2h", "age>2h: 2h is not a number (s or ms may follow one)"),
        ("kv>", "kv> needs a number, as in kv>40"),
        ("ttft<=", "ttft<= needs a number, as in ttft<=40ms"),
        (
            "blocks>4",
            "blocks>4: compare prompt, cached, out, kv, full, preempt, priority, progress, age, ttft, itl",
        ),
        ("state=decode", "state=decode: write decode alone"),
        ("!", "! needs a word after it, as in !decode"),
    ],
)
def test_a_word_that_is_not_understood_is_named_with_what_is_possible(words: str, problem: str) -> None:
    assert Filter(words).problems == [problem]


def staging() -> Staging:
    engine = SyntheticEngine()
    history = History()
    history.apply(engine.header())
    history.apply(engine.snapshot())
    return Staging(history)


def test_nudging_stays_on_the_grid_and_within_bounds() -> None:
    made = staging()
    made.stage("max_num_scheduled_tokens", 65)
    made.nudge("max_num_scheduled_tokens", 1)
    assert made.staged["max_num_scheduled_tokens"] == 128
    for _ in range(100):
        made.nudge("max_num_scheduled_tokens", 1)
    assert made.staged["max_num_scheduled_tokens"] == 2048
    for _ in range(100):
        made.nudge("max_num_seqs", -1)
    assert made.staged["max_num_seqs"] == 1


def test_a_value_equal_to_the_present_one_is_not_staged() -> None:
    made = staging()
    made.nudge("max_num_seqs", 1)
    made.nudge("max_num_seqs", -1)
    assert not made.staged


def test_auto_and_switches() -> None:
    made = staging()
    made.stage("max_num_scheduled_tokens", "auto")
    assert made.staged == {"max_num_scheduled_tokens": None}
    made.nudge("enable_prefix_caching", -1)
    assert made.staged["enable_prefix_caching"] is False
    made.nudge("max_num_active_seqs", -1)
    assert made.staged["max_num_active_seqs"] == 15
    with pytest.raises(KnobError, match="must be at most 8"):
        made.stage("num_speculative_tokens", 9)


@given(st.integers(1, 400), st.integers(1, 120), st.booleans(), st.booleans())
def test_places_fill_the_screen_without_overlap(width: int, height: int, banner: bool, timeline: bool) -> None:
    places = layout.arrange(width, height, "requests", None, banner, timeline)
    if layout.mode(width, height) == "small":
        assert not places
        return
    seen: set[tuple[int, int]] = set()
    for name, place in places.items():
        assert place.width > 0 and place.height > 0, name
        cells = {
            (x, y) for x in (place.x, place.x + place.width - 1) for y in range(place.y, place.y + place.height)
        }
        assert not cells & seen, name
        seen |= cells
        assert place.x + place.width <= width and place.y + place.height <= height
    assert sum(place.width * place.height for place in places.values()) == width * height


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=5), st.integers(5, 200))
def test_shares_use_all_cells_and_hide_nothing(amounts: list[int], cells: int) -> None:
    given_cells = shares(tuple(amounts), cells)
    assert sum(given_cells) == cells
    assert all(part > 0 for amount, part in zip(amounts, given_cells, strict=True) if amount)


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=20), st.integers(3, 80))
def test_columns_never_stand_out_of_their_height(parts: list[tuple[float, float, float]], height: int) -> None:
    import numpy as np

    array = np.array(parts)
    array /= max(array.sum(axis=1).max(), 1.0)
    levels = column_levels(array, height)
    assert (np.diff(levels, axis=1) >= 0).all() and (levels <= height).all() and (levels >= 0).all()


@pytest.mark.parametrize("key", ["delete", "W"])
def test_a_key_of_a_running_engine_says_why_it_does_nothing_in_a_replay(key: str) -> None:
    assert "only on a running engine" in str(Registry(mode=REPLAY).why_nothing(key))
    assert Registry(mode=LIVE).why_nothing(key) is None
