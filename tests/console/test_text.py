from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from schedtop.console.drawing import text
from schedtop.console.drawing.glyphs import ASCII, UNICODE, to_ascii


@given(st.text(max_size=300))
def test_cleaned_text_holds_nothing_that_moves_or_hides(raw: str) -> None:
    cleaned = text.clean(raw)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for char in cleaned)
    assert len(cleaned) <= 200


def test_escape_sequences_and_bidi_marks_are_shown_as_question_marks() -> None:
    assert text.clean("\x1b[31mred\u202egnp\u200b.exe") == "?[31mred?gnp?.exe"


def test_markup_is_left_as_it_is() -> None:
    assert text.clean("[bold]x[/bold]") == "[bold]x[/bold]"


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Mn", "Me", "Cf")), max_size=40),
    st.integers(0, 60),
)
def test_fitted_text_has_exactly_the_asked_cells(words: str, width: int) -> None:
    assert cell_len(text.fit(words, width)) == width


def test_a_cut_is_marked() -> None:
    assert text.fit("abcdefgh", 5) == "abcd~"
    assert text.fit("abc", 5, ">") == "  abc"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (999, "999"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (1_230_000, "1.2M"),
        (None, "n/a"),
    ],
)
def test_counts_take_at_most_five_cells(number: float | None, words: str) -> None:
    assert text.count(number) == words


@given(st.floats(0, 1e11))
def test_no_count_is_wider_than_six(number: float) -> None:
    assert len(text.count(number)) <= 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0467, "46.7"), (0.182, "182"), (0.94, "940"), (0.00042, "0.42"), (float("nan"), "-"), (None, "-")],
)
def test_milliseconds_keep_three_digits(seconds: float | None, words: str) -> None:
    assert text.ms(seconds) == words


def test_a_time_never_carries_two_units() -> None:
    assert [text.ms_unit(seconds) for seconds in (0.0467, 99.9, 115.2, None)] == [
        "46.7 ms",
        "99.9 s",
        "115 s",
        "-",
    ]
    assert text.times([0.0707, 16.124, None]) == (["0.07", "16.1", "-"], "s")
    assert text.times([0.0707, 54.57, 137.4]) == (["0.07", "54.6", "137"], "s")
    assert text.times([]) == ([], "ms")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0s"), (12.34, "12.3s"), (245, "4m05s"), (3600, "1h00m"), (11_520, "3h12m")]
)
def test_durations(seconds: float, words: str) -> None:
    assert text.duration(seconds) == words


def test_a_share_is_never_rounded_to_nothing_or_everything() -> None:
    assert text.share(1, 1000) == "<1%"
    assert text.share(999, 1000) == ">99%"
    assert text.share(1000, 1000) == "100%"
    assert text.share(0, 0) == "n/a"


def test_the_ascii_set_is_ascii_and_has_the_same_shape() -> None:
    for name in ASCII.__slots__:
        assert getattr(ASCII, name).isascii()
        if name not in ("eighths", "spark", "progress", "arrow"):
            assert len(getattr(ASCII, name)) == len(getattr(UNICODE, name)) == 1
    assert len(ASCII.progress) == len(UNICODE.progress) == 4


def test_our_own_signs_are_spelt_in_ascii() -> None:
    assert to_ascii("watermark: 7 − 5 < 3, 16→12 …") == "watermark: 7 - 5 < 3, 16->12 ~"
    assert to_ascii("é") == "?"


@pytest.mark.parametrize("width", [12, 18, 30])
def test_ids_of_a_server_differ_where_they_are_cut(width: int) -> None:
    prefix = "chatcmpl-___prefill_addr_10.0.0.1:8000___decode_addr_10.0.0.2:8000_"
    one, two = (f"{prefix}{tail}" for tail in ("3f2a9c1e77", "3f2a9c1e78"))
    assert text.identity(one, width) != text.identity(two, width)
    assert len(text.identity(one, width)) == width and "~" in text.identity(one, width)
    assert text.identity(one) == one and text.identity("r-1", width) == "r-1"
