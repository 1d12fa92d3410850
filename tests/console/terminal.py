"""A terminal for tests: as much of one as the console writes to."""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(
    r"\x1b\[(?P<private>[?>=<]?)(?P<numbers>[\d;]*)[ -/]?(?P<final>[@-~])"
    r"|\x1b[\]P][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]P]|[\r\n\x07]|(?P<text>[^\x1b\r\n\x07]+)"
)
_OFF = {
    "22": ("1", "2"),
    "23": ("3",),
    "24": ("4",),
    "27": ("7",),
    "29": ("9",),
    "39": ("colour",),
    "49": ("ground",),
}
ASKED = b"\x1b[6n"
ANSWER = b"\x1b[1;1R"


class Tty:
    """`feed` takes what was written; `lines` are what it shows, `styles` the codes of each cell."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rest = ""
        self.clear()

    def clear(self) -> None:
        self.cells = [[" "] * self.width for _ in range(self.height)]
        self.styles = [[""] * self.width for _ in range(self.height)]
        self.x = self.y = 0
        self.style: dict[str, str] = {}

    @property
    def lines(self) -> list[str]:
        return ["".join(line) for line in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def feed(self, data: bytes) -> None:
        words = self._rest + data.decode("utf-8", "surrogateescape")
        cut = words.rfind("\x1b")
        whole = cut < 0 or _TOKEN.match(words, cut) is not None
        words, self._rest = (words, "") if whole else (words[:cut], words[cut:])
        for token in _TOKEN.finditer(words):
            if token["text"]:
                self._write(token["text"])
            elif token["final"] and not token["private"]:
                self._control(token["final"], token["numbers"])
            elif token[0] in ("\x1b[?1049h", "\x1bc"):
                self.clear()
            elif token[0] == "\n":
                self.x, self.y = 0, min(self.height - 1, self.y + 1)

    def _write(self, words: str) -> None:
        for char in words:
            if self.x < self.width:
                self.cells[self.y][self.x] = char
                self.styles[self.y][self.x] = ";".join(sorted(self._seen(char)))
                for extra in range(1, cell_len(char)):
                    self.cells[self.y][self.x + extra] = ""
                    self.styles[self.y][self.x + extra] = self.styles[self.y][self.x]
            self.x += cell_len(char)

    def _seen(self, char: str) -> list[str]:
        """The codes that make a difference: a blank has no colour of its own, unless it is turned inside out."""
        if char != " " or "7" in self.style:
            return list(self.style.values())
        return [code for name, code in self.style.items() if name in ("ground", "4", "9")]

    def _control(self, final: str, numbers: str) -> None:
        values = [int(number or 0) for number in numbers.split(";")]
        if final == "H":
            self.y, self.x = max(0, values[0] - 1), max(0, (values[1] if len(values) > 1 else 1) - 1)
        elif final == "C":
            self.x += max(1, values[0])
        elif final == "m":
            self._restyle(numbers)

    def _restyle(self, numbers: str) -> None:
        for code in re.findall(r"[34]8;(?:5;\d+|2;\d+;\d+;\d+)|\d+", numbers) or ["0"]:
            if code == "0":
                self.style = {}
            elif code in _OFF:
                for name in _OFF[code]:
                    self.style.pop(name, None)
            elif re.match(r"38;|3[0-7]$|9[0-7]$", code):
                self.style["colour"] = code
            elif re.match(r"48;|4[0-7]$|10[0-7]$", code):
                self.style["ground"] = code
            else:
                self.style[code] = code
