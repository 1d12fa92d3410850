"""Only cells that changed are written, and the terminal then shows what it would have been sent whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from schedtop.console.terminal.frames import Frames
from terminal import Tty
from textual._compositor import LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

WIDTH, HEIGHT = 24, 3
STYLES = [
    Style.parse(words)
    for words in (
        "none",
        "bold",
        "dim",
        "bold dim",
        "red",
        "red on blue",
        "bold underline red on blue",
        "#aabbcc on #102030",
        "#aabbcc on #405060",
        "#5e626a on #2a2b67",
        "bold #5e626a",
        "bold reverse",
    )
]
PIECES = st.lists(
    st.tuples(st.text(st.sampled_from("abc ▁█日"), min_size=1, max_size=9), st.sampled_from(STYLES)), max_size=6
)


def update(lines: list[list[tuple[str, Style]]]) -> LayoutUpdate:
    strips = [
        [Strip([Segment(words, style) for words, style in line]).adjust_cell_length(WIDTH, STYLES[0])]
        for line in lines
    ]
    return LayoutUpdate(strips, Region(0, 0, WIDTH, HEIGHT))  # type: ignore[arg-type]


@given(st.lists(st.lists(PIECES, min_size=HEIGHT, max_size=HEIGHT), min_size=1, max_size=4))
def test_the_terminal_shows_the_last_frame_whatever_came_before(
    screens: list[list[list[tuple[str, Style]]]],
) -> None:
    frames, terminal = Frames(), Tty(WIDTH, HEIGHT)
    for screen in screens:
        frames.take(update(screen), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
        terminal.feed(frames.changes().encode())
    whole, fresh = Frames(), Tty(WIDTH, HEIGHT)
    whole.take(update(screens[-1]), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    fresh.feed(whole.changes().encode())
    assert terminal.lines == fresh.lines and terminal.styles == fresh.styles
    assert not frames.changes(), "nothing is left to write"


def test_a_cell_costs_a_few_bytes() -> None:
    frames = Frames()
    screen = [[("a" * WIDTH, STYLES[3])] for _ in range(HEIGHT)]
    frames.take(update(screen), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    frames.changes()
    screen[1] = [("aaaab" + "a" * (WIDTH - 5), STYLES[3])]
    frames.take(update(screen), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    assert 0 < len(frames.changes()) < 40


def test_blanks_between_words_take_no_style_of_their_own() -> None:
    frames = Frames()
    words = [("one", STYLES[4]), ("  ", STYLES[0]), ("two", STYLES[4]), ("  ", STYLES[1]), ("six", STYLES[4])]
    frames.take(update([words] * HEIGHT), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    assert frames.changes().count("one  two  six") == HEIGHT


def test_a_screen_lost_while_a_frame_is_put_together_is_written_whole_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = Frames()
    frames.take(update([[("a日b", STYLES[0])]] * HEIGHT), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    whole = frames.changes()

    def lost(char: str) -> int:
        frames.forget()  # as a SIGCONT's handler does
        return 2

    frames.take(update([[("c日d", STYLES[0])]] * HEIGHT), (WIDTH, HEIGHT), ColorSystem.TRUECOLOR)
    frames.forget()
    monkeypatch.setattr("schedtop.console.terminal.frames.cell_len", lost)
    frames.changes()
    monkeypatch.undo()
    assert frames.changes() == whole.replace("a", "c").replace("b", "d")
