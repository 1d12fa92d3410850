"""Makes outside text harmless: ids, names, paths, messages. All of it passes through here before it is shown.

Control, format (bidi among them), private and unassigned characters become `?`, whitespace a blank. Accents are
composed; of marks that stay apart a letter keeps one, so that nothing is painted over other lines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"))
_BLANK = frozenset("\t\n\r\v\f")
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def one_line(value: object, limit: int | None = None) -> str:
    """`value` as one harmless line; a cut at `limit` characters is marked by a closing `~`."""
    text = unicodedata.normalize("NFC", str(value))
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "~"
    if text.isascii() and text.isprintable():
        return text
    kept: list[str] = []
    may_carry = False
    for char in text:
        category = unicodedata.category(char)
        mark = may_carry and category == "Mn" and not unicodedata.name(char, "").startswith("VARIATION")
        hidden = category in _HIDDEN and not mark
        kept.append(" " if char in _BLANK or category == "Zs" else "?" if hidden else char)
        may_carry = category[0] == "L"
    return "".join(kept)


def page(lines: Iterable[str]) -> str:
    """Lines whose number stays the same, whatever they hold."""
    return "\n".join(one_line(line) for line in lines)


def harmless(text: str) -> str:
    """Text of several lines."""
    return page(text.split("\n"))


def json_text(text: str) -> str:
    """A JSON document with all terminal control characters in its strings escaped."""
    return _ESCAPED_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_bytes(body: bytes) -> bytes:
    """`json_text` of UTF-8 bytes."""
    return body if body.isascii() and b"\x7f" not in body else json_text(body.decode()).encode()
