from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from schedtop.engine.contract.sanitize import harmless, json_text, one_line, page

NAMES = Path(__file__).parents[2] / "field" / "T-names.json"


@given(st.text())
def test_a_line_stays_a_line_and_nothing_in_it_is_obeyed(raw: str) -> None:
    line = one_line(raw)
    assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert one_line(line) == line
    assert page([raw, raw]) == f"{line}\n{line}"


@given(st.text())
def test_a_json_document_keeps_its_values(raw: str) -> None:
    text = json_text(json.dumps(raw, ensure_ascii=False))
    assert json.loads(text) == raw
    assert not {unicodedata.category(char) for char in text} & {"Cc", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31m\x9b2J\u202eevil", "?[31m?2J?evil"),
        ("a\r\nb\tc", "a  b c"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("x\u0304", "x\u0304"),
        ("e\u0301\u0301\u0301\u0301", "\u00e9\u0301??"),
        ("\u0301alone", "?alone"),
        ("\u2764\ufe0f", "\u2764?"),
        ("\u05d1\u05e7\u05e9\u05d4-7", "\u05d1\u05e7\u05e9\u05d4-7"),
    ],
)
def test_what_is_shown(raw: str, shown: str) -> None:
    assert one_line(raw) == shown


def test_names_from_everywhere_take_the_cells_they_say() -> None:
    for request in json.loads(NAMES.read_text())["requests"]:
        shown = one_line(request["id"], 40)
        assert len(shown) <= 40
        assert cell_len(shown) == sum(map(cell_len, shown)), "no character changes the width of another"


def test_lines_of_a_text_stay() -> None:
    assert harmless("a\n\x07b\n") == "a\n?b\n"
