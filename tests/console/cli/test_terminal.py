"""What the environment says about the terminal."""

from __future__ import annotations

import pytest
from schedtop.console.cli.terminal_abilities import has_colours, speaks_utf8


@pytest.mark.parametrize(
    ("environ", "utf8"),
    [
        ({}, True),
        ({"LC_ALL": "C"}, False),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, False),
        ({"LC_ALL": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "en_US.utf8"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LANG": "de_DE.UTF-8@euro"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "UTF-8"}, True),
    ],
)
def test_ascii_only_without_utf8(environ: dict[str, str], utf8: bool) -> None:
    assert speaks_utf8(environ) == utf8


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"TERM": "vt100"}, False),
        ({"TERM": "vt100", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "linux"}, True),
        ({"TERM": "vt220-w"}, False),
        ({"TERM": "xterm-mono"}, False),
        ({"TERM": "vte-256color"}, True),
        ({"TERM": "vt525"}, True),
        ({}, True),
    ],
)
def test_monochrome_without_colours(environ: dict[str, str], colours: bool) -> None:
    assert has_colours(environ) == colours
